"""`approvals …`: what people allowed on repositories, listed and taken back."""

import click

from patchyard.cli.context import examples, json_option, open_client, print_json, run, settings, stdout
from patchyard.cli.render.rules import print_approvals, rule_text
from patchyard.cli.running.source import repository_name
from patchyard.protocol.approvals import ApprovalListResponse, ApprovalView


@click.group()
def approvals() -> None:
    """Look at what agents may do on a repository without asking again, and take it back."""


@approvals.command(
    "list",
    epilog=examples(
        "patchyard approvals list",
        "patchyard approvals list --repository https://example.org/repo.git",
        "patchyard approvals list --revoked --json | jq '.data[] | [.repository, .rule]'",
    ),
)
@click.option("--repository", default=None, metavar="URL|PATH", help="Only those of this repository.")
@click.option("--revoked", is_flag=True, help="Also those that count no more.")
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True, help="Approvals on a page.")
@click.option("--cursor", default=None, metavar="CURSOR", help="Go on behind an earlier page.")
@json_option
def list_approvals(repository: str | None, revoked: bool, limit: int, cursor: str | None, as_json: bool) -> None:
    """List approvals, newest first."""

    async def ask() -> ApprovalListResponse:
        wanted = None if repository is None else await repository_name(repository)
        async with open_client(settings()) as client:
            return await client.list_approvals_page(repository=wanted, revoked=revoked, limit=limit, cursor=cursor)

    page = run(ask())
    if as_json:
        print_json(page)
    elif not page.data:
        stdout().print("No approvals: agents ask each time, or within one task only.", markup=False)
    else:
        print_approvals(page.data)
        if page.next_cursor:
            stdout().print(f"More: --cursor {page.next_cursor}", style="dim", markup=False)


@approvals.command("revoke", epilog=examples("patchyard approvals revoke APPROVAL"))
@click.argument("approval_ids", metavar="APPROVAL...", nargs=-1, required=True)
@json_option
def revoke_approval(approval_ids: tuple[str, ...], as_json: bool) -> None:
    """Take approvals back: later turns ask again."""

    async def ask() -> list[ApprovalView]:
        async with open_client(settings()) as client:
            return [await client.revoke_approval(approval_id) for approval_id in approval_ids]

    revoked = run(ask())
    if as_json:
        print_json(ApprovalListResponse(data=tuple(revoked)))
        return
    for approval in revoked:
        stdout().print(f"Revoked on {approval.repository}: {rule_text(approval.rule)}", markup=False)
