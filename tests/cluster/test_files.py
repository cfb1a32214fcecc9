"""The files of labs/cluster hold one command, on a mesh of as many ranks as they start, and give a
save its time; in Kubernetes' files no field is misspelt or of another kind."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from minitrain.apps.train.options import new_options

CLUSTER = Path(__file__).parents[2] / "labs" / "cluster"
SCRIPTS = ("torchrun.sh", "slurm.sbatch", "slurm_here.sh")
JOBS = ("pytorchjob.yaml", "trainjob.yaml", "jobset.yaml")
ENDS = r"\n```|\n\s+resources|\|\| code|\Z"


def command_in(text: str) -> list[str]:
    """What follows `minitrain train` there, without its line breaks."""
    lines = text.replace("\\\n", " ").split("minitrain train ", 1)[1]
    return shlex.split(re.split(ENDS, lines)[0])


def number_after(flag: str, text: str) -> int:
    return int(re.search(rf"{flag}[ =](\d+)", text)[1])


def documents(name: str) -> dict[str, dict]:
    return {each["kind"]: each for each in yaml.safe_load_all((CLUSTER / name).read_text())}


def test_they_hold_one_command_and_a_mesh_of_as_many_ranks_as_they_start():
    wanted = command_in((CLUSTER / "README.md").read_text())
    pairs = dict(zip(*[iter(word for word in wanted if word != "--sequence")] * 2))
    given = {name[2:]: int(value) if value.isdigit() else value for name, value in pairs.items()}
    del given["out"]
    options = new_options({**given, "sequence": True})
    assert options.ranks == 16
    for name in ("torchrun.sh", "slurm.sbatch", *JOBS):
        text = (CLUSTER / name).read_text()
        assert command_in(text) == wanted, name
        ranks = number_after("--nnodes", text) * number_after("--nproc-per-node", text)
        assert ranks == options.ranks, name
        assert number_after("--max-restarts", text) == 3, name


def test_torchrun_and_the_system_leave_a_save_its_time():
    """torchrun kills its ranks before whatever started it kills it, and later than its default."""
    for name in ("torchrun.sh", "slurm.sbatch", *JOBS):
        text = (CLUSTER / name).read_text()
        patience = number_after("--shutdown-timeout", text)
        assert patience > 30, name
        assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in text, name
        if name in JOBS:
            assert number_after("terminationGracePeriodSeconds:", text) > patience, name
            assert "exec torchrun" in text, f"{name}: a shell would keep SIGTERM for itself"
    text = (CLUSTER / "slurm.sbatch").read_text()
    notice = int(re.search(r"--signal=TERM@(\d+)", text)[1])
    assert notice > number_after("--shutdown-timeout", text) and "scontrol requeue" in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_are_bash(name):
    subprocess.run(["bash", "-n", CLUSTER / name], check=True)


def test_the_jobs_have_two_nodes_of_eight():
    nodes = documents("pytorchjob.yaml")["PyTorchJob"]["spec"]
    assert sum(node["replicas"] for node in nodes["pytorchReplicaSpecs"].values()) == 2
    assert int(nodes["nprocPerNode"]) == 8
    (node,) = documents("jobset.yaml")["JobSet"]["spec"]["replicatedJobs"]
    job = node["template"]["spec"]
    assert node["replicas"] == 1 and job["completions"] == job["parallelism"] == 2
    both = documents("trainjob.yaml")
    trainer, runtime = both["TrainJob"]["spec"]["trainer"], both["TrainingRuntime"]
    assert trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 2
    assert trainer["numProcPerNode"] == 8
    assert both["TrainJob"]["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def test_the_first_pod_is_found_by_the_name_that_jobset_gives_it():
    """NAME-JOB-0-0.NAME, JobSet's own rule."""
    jobset = documents("jobset.yaml")["JobSet"]
    name, (node,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert f"--rdzv-endpoint {name}-{node['name']}-0-0.{name}:" in container["args"][0]


# --- against the schemas ---

MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}


def misread(document: dict) -> bool:
    """Whether Kubeflow's own types refuse a document, or know nothing of a part of it."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="pip install 'minitrain[cluster]'"
    )
    try:
        read = getattr(models, MODELS[document["kind"]]).from_dict(document)
    except ValueError:
        return True
    return json.loads(read.to_json()) != document


@pytest.mark.cluster
@pytest.mark.parametrize(
    "file, kind, wrong",
    [
        ("jobset.yaml", "JobSet", ("maxRestarts: 10", "maxRestart: 10")),
        ("jobset.yaml", "JobSet", ("maxRestarts: 10", "maxRestarts: ten")),
        ("trainjob.yaml", "TrainJob", ("numNodes: 2\n    numProc", "numNodes: two\n    numProc")),
        ("trainjob.yaml", "TrainJob", ("runtimeRef:", "runtimeref:")),
        ("trainjob.yaml", "TrainingRuntime", ("mlPolicy:", "mlpolicy:")),
    ],
)
def test_kubeflows_types_read_all_of_it(file, kind, wrong):
    assert not misread(documents(file)[kind])
    text = (CLUSTER / file).read_text()
    assert wrong[0] in text
    found = {each["kind"]: each for each in yaml.safe_load_all(text.replace(*wrong, 1))}
    assert misread(found[kind]), "a typo is found"


def pod_templates() -> list[dict]:
    replicas = documents("pytorchjob.yaml")["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]
    (node,) = documents("jobset.yaml")["JobSet"]["spec"]["replicatedJobs"]
    runtime = documents("trainjob.yaml")["TrainingRuntime"]["spec"]["template"]["spec"]
    (other,) = runtime["replicatedJobs"]
    jobs = [each["template"]["spec"] for each in (node, other)]
    return [each["template"] for each in (*replicas.values(), *jobs)]


@pytest.mark.cluster
def test_kubernetes_schemas_accept_the_pods_and_the_job():
    """Strictly: no field that the schema does not know."""
    validate = pytest.importorskip(
        "kubernetes_validate", reason="pip install 'minitrain[cluster]'"
    ).validate
    for template in pod_templates():
        pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}}
        validate({**pod, "template": template}, "1.34", strict=True)
        wrong = json.loads(json.dumps(template))
        wrong["spec"]["terminationGracePeriod"] = wrong["spec"].pop("terminationGracePeriodSeconds")
        with pytest.raises(Exception, match="terminationGracePeriod"):
            validate({**pod, "template": wrong}, "1.34", strict=True)
    (node,) = documents("jobset.yaml")["JobSet"]["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    validate({**job, **node["template"]}, "1.34", strict=True)
