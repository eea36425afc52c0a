"""The HTML report of campaigns: one self-contained file with plots and a drawing of each minimal
case.
"""
