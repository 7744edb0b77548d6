"""The entry of the command line. Ctrl-C ends it with one line of text even while modules load, which takes seconds."""

import sys

from attractor.console import ctrl_c_ends_at_once


def main() -> None:
    with ctrl_c_ends_at_once():
        from attractor.cli import main as run_command
        from attractor.train.interrupt import StopRequest
        from attractor.train.process import safe_path
    StopRequest.ends_process = True
    ended = SystemExit(0)
    try:
        with safe_path():  # torch's compiler starts a Python to try the processor's instructions
            run_command()
    except SystemExit as with_code:
        ended = with_code
    distributed = sys.modules.get("attractor.train.distributed")
    if distributed is not None and distributed.dist.is_initialized():
        distributed.end_process(ended.code or 0)
    raise ended


if __name__ == "__main__":
    main()
