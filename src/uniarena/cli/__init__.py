"""The command line: `uniarena train | resume | eval | export | verify | diff | doctor | plot | profile |
tune-sampling | data | list | check-config | check-env`.

Exit codes: 0 done, 1 the run failed, 2 bad input, 3 nothing to do, 130 interrupted and saved. The answer of a command
goes to stdout, as text or with `--json` as one object; everything else goes to stderr. Nothing heavy is imported before
a command needs it.
"""

from uniarena.cli import data, evaluating, measuring, questions
from uniarena.cli.commands import invoke, main

__all__ = ["data", "evaluating", "invoke", "main", "measuring", "questions"]
