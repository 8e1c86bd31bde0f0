"""Orders and answers in the messages of a test."""

from flwr.app import Message

from fedamp.engines.wire import RoundAnswer, RoundOrder


def order_in(message: Message) -> RoundOrder:
    return RoundOrder.of(message.content)


def answer_in(reply: Message, message: Message) -> RoundAnswer:
    return RoundAnswer.of(reply.content, order_in(message))
