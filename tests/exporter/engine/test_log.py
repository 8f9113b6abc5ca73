"""What the build log is asked for: unused inputs, and the cause of a failure."""

from quatrain.exporter.engine.log import BuildLog, explain_failure, find_unused_inputs

NO_DRIVER = "Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)"


def test_unused_inputs_are_read_from_the_warnings():
    warnings = [
        "ModelImporter.cpp:1071: Make sure input n has Int64 binding.",
        "Unused Input: n",
        "[RemoveDeadLayers] Input Tensor n is unused or used only at compile-time",
    ]

    assert find_unused_inputs(warnings) == ["n"]


def test_the_error_before_the_missing_driver_is_the_cause():
    log = BuildLog()
    log.add("error", "Error Code 4: Internal Error (kOPT values violate shape constraints)")
    log.add("error", NO_DRIVER)

    assert "kOPT" in explain_failure(log).found


def test_no_implementation_after_a_failed_allocation_is_out_of_memory():
    log = BuildLog()
    log.add("warning", "Requested amount of GPU memory (26843545600 bytes) could not be allocated.")
    log.add("error", "Error Code 10: Could not find any implementation for node {ForeignNode[a]}.")

    explanation = explain_failure(log)

    assert explanation.found.startswith("out of memory: Requested amount of GPU memory")
    assert "{ForeignNode[a]}" in explanation.found
    assert "max_batch" in explanation.fix


def test_no_implementation_alone_is_what_it_says():
    log = BuildLog()
    log.add("error", "Error Code 10: Could not find any implementation for node {ForeignNode[a]}.")

    assert explain_failure(log).found.startswith("Error Code 10: Could not find any implementation")


def test_the_file_gets_every_line_and_only_while_asked(tmp_path):
    log = BuildLog()
    with log.record_to(tmp_path / "log"):
        log.add("info", "one")
        log.add("error", "two")
    log.add("info", "three")

    assert (tmp_path / "log").read_text() == "[info] one\n[error] two\n"
    assert log.errors == ["two"]
