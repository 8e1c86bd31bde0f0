"""Orders and answers in the messages of a test."""

from dataclasses import replace

import numpy as np
from flwr.app import Message

from fedamp.engines import flower
from fedamp.engines.wire import RoundAnswer, RoundOrder


def order_in(message: Message) -> RoundOrder:
    return RoundOrder.of(message.content)


def answer_in(reply: Message, message: Message) -> RoundAnswer:
    return RoundAnswer.of(reply.content, order_in(message))


def keeping(message: Message, kept: np.ndarray) -> Message:
    """The same message for some of its units, as if the others had never been asked for."""
    order = order_in(message)
    return flower.with_content(message, replace(order, rows=order.rows[kept]).content())
