"""Sorting of Ops, judgement of servers, and what importing does."""

import subprocess
import sys
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from patchyard.adapters.queue._admission import schema_hash, sort_op
from patchyard.adapters.queue._backend import key_prefix
from patchyard.adapters.queue._health import judge
from patchyard.adapters.streams._subscription import position_key
from patchyard.protocol import ops
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import CONTROL_OPS, Op, Submission
from tests.waiting import PROCESS_S

EXAMPLES: dict[str, dict[str, Any]] = {
    "turn_input": {"items": []},
    "recover_turn": {"turn_id": "t"},
    "turn_settings": {"turn_id": "t", "overrides": {}},
    "thread_settings": {"overrides": {}},
    "inter_agent_communication": {"author_thread_id": "t", "message": "m"},
    "exec_approval": {"approval_id": "a", "decision": "accept"},
    "patch_approval": {"approval_id": "a", "decision": "accept"},
    "user_input_answer": {"request_id": "r", "answers": {}},
    "budget_answer": {"request_id": "r", "decision": "accept"},
    "request_permissions_response": {"request_id": "r", "decision": "accept"},
    "dynamic_tool_response": {"call_id": "c", "output": "", "success": True},
    "resolve_elicitation": {"server": "s", "request_id": "r", "decision": "accept"},
    "run_user_shell_command": {"command": "ls"},
}
GOOD = {
    "redis_version": "7.0.15",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
    "no-appendfsync-on-rewrite": "no",
}


@pytest.mark.parametrize("op_class", get_args(get_args(Op)[0]))
def test_every_op_has_a_class(op_class: type[Any]) -> None:
    name = op_class.model_fields["type"].default
    op = TypeAdapter(Op).validate_python({"type": name, **EXAMPLES.get(name, {})})
    found = sort_op(Submission(id=new_id(), tenant_id="t", thread_id=new_id(), op=op, submitted_at=1))
    if name in CONTROL_OPS:
        assert found.op_class in ("interrupt", "shutdown", "for_turn")
    assert all(value is not None for value in found.as_args().values())


def test_schemas_are_equal_whatever_the_order_of_their_keys() -> None:
    assert schema_hash({"a": 1, "b": {"c": 2, "d": 3}}) == schema_hash({"b": {"d": 3, "c": 2}, "a": 1})
    assert schema_hash({"a": [1, 2]}) != schema_hash({"a": [2, 1]})


def test_keys_of_a_shard_share_a_slot() -> None:
    assert key_prefix(3) == "py:{3}:"


def test_positions_are_numbers_not_texts() -> None:
    assert position_key("9-9") < position_key("10-0") < position_key("10-1") < position_key("10-10")


def test_a_fit_server_has_no_problems() -> None:
    assert judge(GOOD, allow_volatile=False).usable
    assert judge(GOOD | {"valkey_version": "9.1.2"}, allow_volatile=False).server == "valkey"


@pytest.mark.parametrize("missing", ["appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite"])
def test_a_setting_that_can_not_be_read_is_a_problem(missing: str) -> None:
    health = judge({name: value for name, value in GOOD.items() if name != missing}, allow_volatile=False)
    assert [missing in problem.problem for problem in health.problems] == [True]
    assert not health.usable


@pytest.mark.parametrize("version", ["6.2.14", "unknown", "0"])
def test_an_old_server_is_refused_also_in_development(version: str) -> None:
    health = judge(GOOD | {"redis_version": version}, allow_volatile=True)
    assert not health.usable
    assert "7" in health.problems[0].remedy


def test_the_double_needs_no_redis_library() -> None:
    code = "import sys, patchyard.testing.queue, patchyard.adapters.streams; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PROCESS_S).returncode == 0


def test_interrupt_reaches_its_turn_only() -> None:
    op = ops.Interrupt(turn_id="t")
    found = sort_op(Submission(id=new_id(), tenant_id="t", thread_id=new_id(), op=op, submitted_at=1))
    assert found.as_args() == {"class": "interrupt", "expected": "t", "empty": False}
