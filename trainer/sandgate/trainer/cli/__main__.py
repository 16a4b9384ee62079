"""`python -m sandgate.trainer.cli`: the command `sandgate`, where this Python has it and PATH may not."""

from sandgate.trainer.cli.command import main

if __name__ == "__main__":
    main()
