"""Let people label in Label Studio: batches become tasks, and annotations become answers."""

from coresift.labelling.labellers.label_studio.connection import connect, open_server
from coresift.labelling.labellers.label_studio.labeller import LabelStudioLabeller
from coresift.labelling.labellers.label_studio.server import LabelStudio
from coresift.labelling.labellers.label_studio.tokens import read_token
from coresift.labelling.labellers.label_studio.watching import watch

__all__ = ["LabelStudio", "LabelStudioLabeller", "connect", "open_server", "read_token", "watch"]
