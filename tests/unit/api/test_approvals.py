"""Approvals of repositories over HTTP: listed, revoked, each tenant its own."""

import asyncio
from pathlib import Path

import pytest

from patchyard.client import NotFound
from patchyard.protocol.approvals import AllowedPrefix
from patchyard.protocol.events import ApprovalRemembered
from patchyard.protocol.ids import new_id
from patchyard.protocol.ops import ApprovalDecision, ExecApproval
from patchyard.protocol.tasks import NoSource, TaskSpec

from .kit import OTHER_TOKEN, Worker, serving

NPM = AllowedPrefix(words=("npm", "run"))


async def allowed(worker: Worker) -> None:
    """A worker tells that a person allowed something; the submission says who."""
    answer = await worker.channel.receive()
    event = ApprovalRemembered(approval_id=new_id(), repository="https://example.org/a", rules=(NPM,), by=answer.author)
    await worker.say(event)
    await worker.finish()


def test_approvals_are_listed_and_revoked_by_their_tenant_only(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as api, api.sdk() as sdk, api.sdk(OTHER_TOKEN) as other:
            created = await sdk.create_task(TaskSpec(repository=NoSource(), instruction="x"))
            worker = await api.worker()
            await worker.start()
            await sdk.submit(created.thread_id, ExecApproval(approval_id=new_id(), decision=ApprovalDecision.ACCEPT))
            await allowed(worker)
            await sdk.get_task(created.task_id)  # its records are projected
            (approval,) = (await sdk.list_approvals_page(repository="https://example.org/a.git")).data
            assert (approval.rule, approval.approved_by, approval.task_id) == (NPM, "local", created.task_id)
            assert (await sdk.list_approvals_page(repository="https://example.org/b")).data == ()
            assert (await other.list_approvals_page()).data == ()
            for client, wanted in ((other, approval.id), (sdk, new_id())):
                with pytest.raises(NotFound, match="patchyard approvals list"):
                    await client.revoke_approval(wanted)
            revoked = await sdk.revoke_approval(approval.id)
            assert (revoked.id, revoked.revoked_by) == (approval.id, "local")
            assert await sdk.revoke_approval(approval.id) == revoked
            assert (await sdk.list_approvals_page()).data == ()
            assert (await sdk.list_approvals_page(revoked=True)).data == (revoked,)

    asyncio.run(run())
