"""The doctor's checks need engine and worker libraries, which this process does not load: a child runs them."""

import asyncio
import sys

from pydantic import ValidationError

from patchyard.protocol.errors import ErrorCode
from patchyard.protocol.service import DoctorReport

from .errors import refuse

_TIMEOUT_S = 60.0
_ONE_AT_A_TIME = asyncio.Semaphore(1)
"""Each check pulls at the engine; many clients asking at once must not multiply that."""


async def run_doctor(argv: tuple[str, ...] = (sys.executable, "-m", "workers.doctor", "--json")) -> DoctorReport:
    """Run the checks. ApiError internal: they could not be run."""
    async with _ONE_AT_A_TIME:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
        except TimeoutError:
            raise refuse(ErrorCode.INTERNAL, f"The checks took longer than {_TIMEOUT_S:.0f} s. Is the engine hung?") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    try:
        return DoctorReport.model_validate_json(output)
    except ValidationError:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        raise refuse(ErrorCode.INTERNAL, f"The checks could not be run: {last[0][:300]}") from None
