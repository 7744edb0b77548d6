"""All cases of the decoding benchmark with Hugging Face generate the same tokens, and all are timed."""

from decoding_peers import BASELINE, bench_decoding_peers

from attractor.models import TransformerConfig


def test_all_three_ways_to_generate_are_timed_on_the_same_tokens() -> None:
    config = TransformerConfig(
        vocab_size=50, d_model=32, n_heads=2, n_layers=2, d_ff=48, max_seq_len=64, positions="rope"
    )
    timings = bench_decoding_peers(config, n_tokens=4, n_rounds=2)
    assert list(timings) == [BASELINE, "ours through generate", "ours"]
    assert timings[BASELINE].ratio == 1
    assert all(timing.median_seconds > 0 for timing in timings.values())
