"""The command that shows the runs of a folder while they train: watch."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import say
from attractor.cli.parsing import refuse_file

PORT = 8642


@dataclass(frozen=True)
class WatchArguments:
    folder: Positional[Path] = Path("runs")
    """a folder of runs, or one run; by default runs"""
    port: int = PORT
    """the port of 127.0.0.1 to listen on; 0 takes a free one, by default 8642"""


def watch(args: WatchArguments, console: Console) -> None:
    """Show the runs of a folder in a browser on this machine, and follow them while they train.

    attractor watch runs
    """
    from attractor.report.live_server import LiveServer

    refuse_file(args.folder)
    with LiveServer(args.folder, args.port) as server:
        say(console, f"{server.address} shows the runs in '{args.folder}'; Ctrl-C ends")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say(console, f"no longer watching '{args.folder}'; runs go on")
