"""The commands: their options, and how results are shown.

No logic: each command opens what it needs and calls a package below. Begin with `syncer.cli.app`; each group of
commands has a module.
"""
