"""`python -m uniarena`."""

from uniarena.cli import main

main()
