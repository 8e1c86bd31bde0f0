"""The clients: fedamp's app trains, clips every client's update, and answers with nothing but their sum."""

from fedamp.client.app import app as fedamp_app

app = fedamp_app  # Flower looks for an assignment in the source
