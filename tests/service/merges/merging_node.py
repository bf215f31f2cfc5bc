"""What a node says to the service about a merge: its uploads, reports, pulses and losses."""

import hashlib

from contract.messages.upload_messages import UploadGrant

SHARD = b"a shard of weights"


def call(node, work, method, path, said=None):
    return node.call(method, f"placements/{work.placement_id}/{path}", work.token, said)


def upload(node, work, content):
    """The status of the grant; the object is put where the service says."""
    sha256 = hashlib.sha256(content).hexdigest()
    asked = call(node, work, "POST", "uploads", {"fence": work.fence, "sha256": sha256, "bytes": len(content)})
    if asked.status_code == 200 and not (grant := UploadGrant.model_validate(asked.json())).exists:
        assert node.client.put(grant.url, headers=grant.headers, content=content).status_code == 204
    return asked.status_code


def file(path, content):
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def report(node, work, **said):
    answer = call(node, work, "POST", "merge", said)
    return answer.status_code, answer.json()["code"] if answer.content else None


def pulse(work, **more):
    return {"placement_id": work.placement_id, "fence": work.fence, "phase": "training", "progress_age": 0.0} | more


def lost(node, work, **more):
    said = {"reason": "executor_lost", "fences": {work.placement_id: work.fence}, "detail": "killed"} | more
    assert node.call("POST", f"nodes/{node.id}/lost", node.credential, said).status_code == 204


def finish(node, work):
    assert upload(node, work, SHARD) == 200
    assert report(node, work, files=[file("model.safetensors", SHARD)], done=True) == (204, None)
