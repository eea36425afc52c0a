"""``fuzzshard host``: lends the ranks of this node to worlds of another one."""

from __future__ import annotations

from pathlib import Path

from fuzzshard.errors import EXIT_CLEAN


def host(*, listen: str, secret_file: Path) -> int:
    """Lend ranks on this node to fuzzshard run --hosts on another node, until Ctrl-C or SIGTERM.

    Whoever connects has to know the secret. Ranks end when the command that
    asked for them ends or cannot be reached any more. Both nodes need the
    same Python, torch and fuzzshard, and files that options name at the same
    place. Ranks talk with each other unencrypted at this address, as in any
    training run: use a network that you trust.

    For example:
      openssl rand -hex 32 > secret          # once; copy it to both nodes
      fuzzshard host --listen 10.0.0.2:29400 --secret-file secret

    Parameters
    ----------
    listen
        ADDRESS:PORT of this node. Nothing listens at its other addresses.
    secret_file
        A file with the secret.
    """
    from fuzzshard.campaign.signals import signals_call
    from fuzzshard.world.host import Host, listening, name_of
    from fuzzshard.world.link import read_secret

    def say(line: str) -> None:
        print(line, flush=True)

    secret = read_secret(str(secret_file))
    with listening(listen) as server:
        lending = Host(server, secret, say)
        with signals_call(lending.close):
            say(f"listening at {name_of(server)}")
            lending.serve()
    return EXIT_CLEAN
