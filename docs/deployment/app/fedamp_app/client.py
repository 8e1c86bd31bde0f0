"""Points at the installed client app; Flower looks for an assignment in the source."""

from fedamp.client.app import app as real

app = real
