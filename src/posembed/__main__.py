"""python -m posembed"""

from posembed.cli import main

main()
