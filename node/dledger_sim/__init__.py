"""Seeded simulator and scenario runner: the shipped core and store on simulated everything else.

Not shipped. A seed is a whole run; a failing run prints its seed and how to replay it.
"""
