"""Agents that an agent starts: each in a thread of its own, with its own box, within the budgets of the turn that pays.

port     what it needs from outside    agents  limits, record and costs
shares   who may use how much          tools   what the model calls
"""
