"""Points at the installed server app; Flower looks for an assignment in the source."""

from fedamp.server.app import app as real

app = real
