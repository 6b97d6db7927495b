"""What a ring remembers of a row in one byte."""

TERMINATED, TRUNCATED = 1, 2
STOP = 4  # a window of steps ends with this row
FINAL = 8  # its successor is kept aside, among the final observations
OK = 16  # can be sampled: a real step whose successor is known and whose stacks can be rebuilt
FIRST, VALID = 32, 64
