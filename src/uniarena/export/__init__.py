"""Export: the acting policy in formats that run without this framework."""
