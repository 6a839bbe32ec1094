"""Let people label in Label Studio: batches become tasks, and annotations become answers."""

from coresift.labelling.labellers.label_studio.connection import Connection, connect, open_server
from coresift.labelling.labellers.label_studio.labeller import LabelStudioLabeller, Pulled, Pushed
from coresift.labelling.labellers.label_studio.server import LabelStudio
from coresift.labelling.labellers.label_studio.tokens import read_token
from coresift.labelling.labellers.label_studio.watching import Watched, watch

__all__ = [
    "Connection",
    "LabelStudio",
    "LabelStudioLabeller",
    "Pulled",
    "Pushed",
    "Watched",
    "connect",
    "open_server",
    "read_token",
    "watch",
]
