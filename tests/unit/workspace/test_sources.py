from pathlib import Path

import pytest

from patchyard.adapters.workspace import RepositoryNotAllowed, RepositoryNotFound, check_url


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("https://example.org/a/b.git", "https"),
        ("ssh://git@example.org/a/b.git", "ssh"),
        ("ssh://git@example.org:2222/a/b.git", "ssh"),
        ("git@example.org:a/b.git", "ssh"),
    ],
)
def test_https_and_ssh_are_read(url: str, protocol: str) -> None:
    assert check_url(url, allow_local=False).protocol == protocol


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a",
        "git://example.org/a",
        "ext::sh -c id",
        "ext::sh%20-c%20id",
        "file:///etc",
        "ftp://example.org/a",
        "fd::7",
        "-uploadpack=id",
        "--upload-pack=id",
        "ssh://-oProxyCommand=id/a",
        "ssh://host name/a",
        "git@-oProxyCommand=id:a",
        "https://user:secret@example.org/a",
        "https://token@example.org/a",
        "https:///a",
        "https://example.org:port/a",
        "relative/path",
        "https://example.org/a\nb",
        "/srv/repository",
        "",
    ],
)
def test_everything_else_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(RepositoryNotAllowed) as caught:
        check_url(url, allow_local=False)
    assert "https" in caught.value.info.message or "ssh" in caught.value.info.message
    assert "secret" not in caught.value.info.message


def test_local_folder_needs_the_flag_and_a_repository(tmp_path: Path) -> None:
    with pytest.raises(RepositoryNotFound, match="git init"):
        check_url(str(tmp_path), allow_local=True)
    with pytest.raises(RepositoryNotFound, match="no folder"):
        check_url(str(tmp_path / "absent"), allow_local=True)
    (tmp_path / ".git").mkdir()
    assert check_url(str(tmp_path), allow_local=True).protocol == "file"
    assert check_url(f"file://{tmp_path}", allow_local=True).url == str(tmp_path)
