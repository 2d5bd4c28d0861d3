"""What `syncer plan` shows: what apply would do, and all that is worth knowing before.

page         a forecast, shown to a person
forecast     all of it, as data
caution      what is probably not meant            estimate     apply, tried out on a scratch index
contents     does what is inside JSON fit?         cost         what queries cost, missing indexes
fitting      do columns fit their mapping?         judging      what each mapping makes of each type
verdict      … and what such a judgement is        numeric      of numbers        temporal      of dates
mappings     those of an index.json, as they are judged
"""
