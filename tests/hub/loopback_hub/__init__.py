"""A stand-in for the Hugging Face Hub on 127.0.0.1, for tests: what huggingface_hub 2.4, datasets 5.2 and transformers 5.24 ask of it.

Repositories are made, written (regular files and LFS, single or in parts), tagged and branched; pull requests are opened and merged; files are
listed and downloaded, with Range; a benchmark's leaderboard is read. Xet is not spoken.

From a shell (PYTHONPATH=tests/hub):
    python -m loopback_hub --root ./hub-root --port 8811 --org selectivbench=alice
    export HF_ENDPOINT=http://127.0.0.1:8811 HF_TOKEN=hf_alice HF_HUB_DISABLE_XET=1
The client reads these variables once, when huggingface_hub is first imported.

From a test (port 0, the default, is a free one):
    with LoopbackHub(root, orgs={"selectivbench": ["alice"]}) as hub:
        subprocess.run([...], env={**os.environ, **hub.env("alice")})
        hub.fault("PUT", r"^/_lfs/", cut_after=65536)
        hub.log

Tokens: `hf_USER` is user USER. A user may write to the repositories of that name and of the user's organisations; anyone may open a pull request.

Assumed of the real Hub, since no document says it: the wording of refusals; which files go by LFS (by suffix, or over 10 MiB); that the leaderboard
shows the first task of eval.yaml, the highest value first, one row a model, open pull requests included.
"""

from .server import LoopbackHub

__all__ = ["LoopbackHub"]
