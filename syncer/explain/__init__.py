"""What `syncer explain` answers: why is this document as it is, and what would be written now?

page         an explanation, shown to a person
explanation  all of it, as data                    verdict      what a person needs first
standing     the document in one index             events       the changes that touch it, wherever they are
"""
