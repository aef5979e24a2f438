"""Whether a tool may do what the model asks, and the questions to people that this takes."""

from .gate import Allowing, Approvals, CommandAsk, Declined
from .memory import Allowed
from .questions import Answer, AnswerOp, Question, Questions, first_of, question_id

__all__ = [
    "Allowed",
    "Allowing",
    "Answer",
    "AnswerOp",
    "Approvals",
    "CommandAsk",
    "Declined",
    "Question",
    "Questions",
    "first_of",
    "question_id",
]
