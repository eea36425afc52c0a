"""What a Case is made of, one file for each part: what it is, requires and does, how it is drawn
and said.
"""
