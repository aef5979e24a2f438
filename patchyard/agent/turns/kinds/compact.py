"""A turn that only compacts the history: the Op `compact` on an idle thread."""

from typing import Literal

from patchyard.agent.turns.turn import Turn
from patchyard.protocol.events import TurnRecovered


class CompactTurn(Turn):
    """Takes no input and changes no files, so nothing is checked or delivered at its end."""

    kind: Literal["regular", "review", "compact", "user_shell"] = "compact"

    async def _begin(self) -> None:
        if self._recovery is None:
            self._opening.announce()
        else:
            reason = self._thread.config.recovery_reason
            self._journal.post(TurnRecovered(segment=self.segment, reason=reason))
            self._ending.close_lost_calls(everything_waited=False)
            await self._opening.own_submission()
        await self._journal.flush()

    async def _loop(self) -> None:
        if self._recovery is None or not self._recovery.turn.compacted:
            await self._windows.alone()
        self.state.at_end = True
        while not await self.state.finish(self._completed(), consumed=[self.id]):
            pass
