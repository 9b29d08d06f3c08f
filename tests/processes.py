"""What tests of killed commands ask of /proc."""


def parent(entry) -> int:
    """The parent's pid of a process, from its folder in /proc; 0 when it has gone."""
    try:
        state, pid = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        return 0 if state == "Z" else int(pid)
    except OSError:
        return 0
