"""The Sandbox port's suite over boxes of a Docker engine."""

import pytest

from tests.conformance import sandbox_suite as suite

pytestmark = pytest.mark.engine


class TestCommands(suite.CommandSuite):
    pass


class TestTerminal(suite.TerminalSuite):
    pass


class TestKill(suite.KillSuite):
    pass


class TestFiles(suite.FileSuite):
    pass


class TestPolicies(suite.PolicySuite):
    pass


class TestEnd(suite.EndSuite):
    pass
