"""What `syncer plan` shows: what apply would do, which problems there are, and what it costs.

forecast     all of it, as data                    estimate     apply, tried on a scratch index
problems     what is rejected, changed, not found  silent       types that lose values, as a table
sample       how real values were indexed          column_type  what a type looks like as JSON
cost         what queries cost, missing indexes
"""
