"""Explain every option of `attractor train`, `compare` and `plan` by one phrase.

The phrases are here and not beside the fields that they describe, because one option often is a field of several models
or tasks, and its phrase must be true of all of them. Options of other commands are described beside their fields, in
the command's file.

An option of a group's `common` part is always shown; of the `further` part only under `--help-all`, or where the model
or task that it belongs to is chosen on the line. The order is that of the help. A test holds these names and the fields
of the configurations together.
"""

from typing import NamedTuple


class Phrase(NamedTuple):
    text: str
    unset: str = "none"  # how the help shows the default None


class PhraseGroup(NamedTuple):
    common: dict[str, Phrase]
    further: dict[str, Phrase]


GROUPS: dict[str, PhraseGroup] = {
    "model": PhraseGroup(
        common={
            "recipe": Phrase("named settings, which all other options change", "the task's"),
            "size": Phrase("a named model instead of the recipe's", "the recipe's"),
            "d_model": Phrase("width of the model"),
            "n_layers": Phrase("number of layers"),
            "n_heads": Phrase("attention heads per layer"),
            "d_ff": Phrase("hidden width of the MLP"),
            "dropout": Phrase("dropout rate of attention weights and both branches"),
        },
        further={
            "positions": Phrase("position encoding: learned, rope, or for boards grid or grid-rope"),
            "max_seq_len": Phrase("longest sequence that learned positions allow"),
            "vocab_size": Phrase("number of tokens in the vocabulary", "from the data"),
            "mlp": Phrase("kind of MLP: swiglu, geglu, geglu-tanh, gelu or gelu-tanh"),
            "mlp_bias": Phrase("biases in the MLP"),
            "head_dim": Phrase("width of a head", "d_model / n_heads"),
            "tied_embeddings": Phrase("use one matrix for the embedding and the readout"),
            "embedding_scale": Phrase("factor on token embeddings at the input"),
            "rope_theta": Phrase("base of the rotary frequencies"),
            "rope_scaling": Phrase("linear:FACTOR, or another scaling of the frequencies"),
            "rope_fraction": Phrase("leading part of each head that RoPE rotates"),
            "no_rope_every": Phrase("of every so many layers, the last has no RoPE"),
            "branch_scale": Phrase("factor on what each branch adds to the stream"),
            "logit_scale": Phrase("factor on the logits of the readout"),
            "parallel_branches": Phrase("both branches of a block read the same stream"),
            "stream_norm": Phrase("norm of the stream: rmsnorm, layernorm or layernorm-no-bias"),
            "logit_softcap": Phrase("bound c on the readout's logits: c tanh(logit / c)", "off"),
            "norms_per_block": Phrase("2: normalise each branch's input; 4: its output as well"),
            "post_norm": Phrase("normalise each branch's output and not its input"),
            "norm_eps": Phrase("number added under the root of a norm"),
            "causal": Phrase("each position sees only earlier ones and itself", "from the task"),
            "n_classes": Phrase("classes of a sequence's label; 1: the label is a number", "from the task"),
            "pool": Phrase("where a sequence's label is read: last or mean"),
        },
    ),
    "attention": PhraseGroup(
        common={
            "presets": Phrase("mechanisms to set side by side", "the recipe's"),
            "attention": Phrase("the mechanism; 'attractor list' shows all"),
            "n_kv_heads": Phrase("key and value heads", "as the mechanism has"),
            "qk_norm": Phrase("normalise queries and keys (QK-norm)"),
        },
        further={
            "qk_norm_across": Phrase("QK-norm over all heads together, not over each"),
            "qk_norm_eps": Phrase("number added under the root of QK-norm"),
            "qkv_bias": Phrase("biases in the query, key and value projections"),
            "out_bias": Phrase("bias of attention's output"),
            "attention_scale": Phrase("factor of attention's logits", "K ** -0.5"),
            "softcap": Phrase("bound c on logits, which become c tanh(logit / c)", "off"),
            "window": Phrase("keys that a position sees, itself and those before", "the whole past"),
            "global_layers": Phrase("layers with no window: every:N, first:N or 5,11", "none"),
            "local_rope_theta": Phrase("rope_theta of layers with a window", "as the others"),
            "orthogonal_values": Phrase("keep the matrix of values orthogonal"),
            "sigma_reparam": Phrase("divide query and key matrices by their spectral norm"),
            "z_loss": Phrase("weight of a penalty on attention's logsumexp"),
            "zero_start": Phrase("start coupling behind closed gates"),
        },
    ),
    "optimisation": PhraseGroup(
        common={
            "n_steps": Phrase("optimizer steps"),
            "epochs": Phrase("passes over the data, instead of n_steps"),
            "batch_size": Phrase("sequences per optimizer step; auto: in pieces that fit"),
            "accumulation": Phrase("micro-batches that make up a step"),
            "lr": Phrase("peak learning rate"),
            "schedule": Phrase("rate after warm-up: cosine or constant"),
            "warmup_steps": Phrase("steps of linear warm-up; keeps its share of n_steps"),
            "optimizer": Phrase("adamw, or muon for hidden matrices"),
            "weight_decay": Phrase("decay of matrices; vectors and scalars have none"),
            "clip": Phrase("largest norm of the gradient", "unclipped"),
            "precision": Phrase("fp32, bf16 or fp16"),
            "compile": Phrase("compile the model with torch.compile"),
            "seed": Phrase("seed of initial weights and of the data's order"),
            "seeds": Phrase("seeds of every mechanism; with --within, at most these", "0 1 2 3, or 0 to 7"),
        },
        further={
            "betas": Phrase("the two averaging rates of AdamW"),
            "muon_per_head": Phrase("Muon orthogonalises query and key matrices head by head"),
            "gate_lr": Phrase("learning rate of gates that start closed", "lr"),
            "ema": Phrase("decay of averaged weights, which are then evaluated", "off"),
            "ema_every": Phrase("steps between updates of the averaged weights"),
            "quack": Phrase("tau of QuacK, which slows heads whose logits may grow", "off"),
            "quack_norm": Phrase("norm that QuacK measures: frobenius or spectral"),
            "qk_rate": Phrase("factor on the rate of query and key weights", "1"),
            "qk_clip": Phrase("largest logit that QK-clip leaves", "off"),
            "regularizer": Phrase("penalty: spectral, energy-single or energy-multi", "off"),
            "regularizer_weight": Phrase("weight of the regularizer in the loss", "as published"),
            "activation_checkpointing": Phrase("recompute activations in the backward pass, for memory"),
            "recompute": Phrase("recompute all (blocks), or only what is cheap (cheap)"),
            "max_bad_steps": Phrase("non-finite steps in a row after which a run stops"),
        },
    ),
    "data": PhraseGroup(
        common={
            "task": Phrase("what is learned: text, mqar, needle, sudoku or glue"),
            "corpus": Phrase("a named corpus, a file of text or a table, or a folder"),
            "seq_len": Phrase("tokens per sequence"),
        },
        further={"column": Phrase("column of a table that holds the text", "'text' or the only one")},
    ),
    "run": PhraseGroup(
        common={
            "out": Phrase("folder to write", "a new one in runs/"),
            "resume": Phrase("run folder to continue as it was configured"),
            "start": Phrase("run folder whose best weights this run starts from"),
            "device": Phrase("cpu, cuda or auto"),
            "within": Phrase("time, as 30m: plan looks, and stop each mechanism once decided", "none"),
            "workers": Phrase("runs at the same time", "one per core, one on a GPU"),
            "margin": Phrase("smallest difference that matters (text: nats/byte)", "none"),
            "thorough": Phrase("also the baseline at half and twice the steps"),
            "devices": Phrase("processes that torchrun would start"),
            "calibrate": Phrase("measure about two seconds, to estimate time and memory"),
            "json": Phrase("print one JSON object, for programs"),
            "eval_every": Phrase("steps between evaluations"),
            "save_every": Phrase("steps between checkpoints"),
        },
        further={
            "eval_batches": Phrase("batches of an evaluation", "all"),
            "threads": Phrase("CPU threads of each run", "automatic"),
            "save_every_minutes": Phrase("minutes without a checkpoint after which one is written", "never"),
            "keep": Phrase("newest checkpoints kept, besides the best one"),
            "parallel": Phrase("how several processes share a model: ddp or fsdp"),
            "collective_timeout": Phrase("seconds that processes of one run wait for one another"),
            "log_every": Phrase("steps between lines of metrics"),
            "telemetry_every": Phrase("steps between looks at attention's logits", "off"),
            "tensorboard": Phrase("also write TensorBoard's files into the run folder"),
            "on_divergence": Phrase("a run that diverged stops, or goes back: stop or rollback"),
            "max_rollbacks": Phrase("times that a run may go back before it stops"),
        },
    ),
    "models of family fast-slow": PhraseGroup(
        common={},
        further={
            "pool_factor": Phrase("tokens per slow position"),
            "n_pre": Phrase("fast blocks before the slow path"),
            "n_post": Phrase("fast blocks after the slow path"),
            "n_slow": Phrase("blocks of the slow path"),
            "n_rounds": Phrase("exchanges between the two paths, with the same weights"),
            "slow_attention": Phrase("mechanism of the slow path", "as the fast path's"),
            "slow_input": Phrase("what the slow path reads: text, or constant (a control)"),
            "frozen": Phrase("keep the gate of the slow path closed (a control)"),
            "projector_width": Phrase("hidden units of the projector back", "linear"),
            "equilibrium": Phrase("how the last blocks settle: single, passes, anderson, deq, forced"),
            "fixed_point_loss": Phrase("weight of the distance to equilibrium in the loss"),
            "solver_depth": Phrase("evaluations from which anderson and deq extrapolate"),
            "solver_tolerance": Phrase("residual below which a token has reached its equilibrium"),
            "backward_iterations": Phrase("iterations for the gradient of deq", "n_iterations"),
            "streams": Phrase("residual streams"),
            "stream_mixing": Phrase("what mixes streams: static weights, or dynamic (of the input)"),
            "unit_slow_state": Phrase("keep the output of the slow path on the unit sphere"),
            "unit_pooled_state": Phrase("keep the input of the slow path on the unit sphere"),
        },
    ),
    "iterations": PhraseGroup(
        common={},
        further={
            "n_iterations": Phrase("iterations of the model, or of the equilibrium's solver"),
            "blank": Phrase("token whose cells start from noise", "no token"),
            "eta": Phrase("step size of ItrSA"),
            "norm": Phrase("norm of ItrSA's state: unit, rms or none"),
            "inject": Phrase("add the input at every iteration"),
            "energy": Phrase("attention that descends an energy: single or multi", "off"),
            "oscillator_width": Phrase("channels of one oscillator of AKOrN"),
            "gamma": Phrase("step size of AKOrN"),
            "coupling": Phrase("what couples AKOrN's oscillators: attention or conv"),
            "grid_width": Phrase("columns of the board that conv sees", "a square"),
            "as_published": Phrase("AKOrN's frequencies, gamma, biases and readout as in its code"),
            "rms_norm": Phrase("learn a scale for each channel of AKOrN's state"),
            "n_inner": Phrase("updates of a recursive model's fast state per update of its answer"),
            "n_segments": Phrase("training steps that share a batch, each with its own loss"),
            "full_gradient": Phrase("differentiate all iterations of a segment, not the last alone"),
            "mixer": Phrase("what connects positions in a recursive model: attention or mlp"),
            "d_mix": Phrase("hidden width of the MLP over positions"),
            "stable_softmax": Phrase("replace exp in the readout's softmax by 1 + x (or 1 / (1 - x))"),
            "halting": Phrase("learn a head that says whether the answer is right"),
        },
    ),
    "task mqar": PhraseGroup(
        common={},
        further={
            "level": Phrase("easy, medium, hard, or zoology-64 to zoology-512"),
            "length": Phrase("tokens per sequence", "the level's"),
            "n_pairs": Phrase("pairs of a key and a value", "the level's"),
            "symbols": Phrase("size of the vocabulary", "the level's"),
            "gap": Phrase("places of the queries: uniform or power", "the level's"),
            "power_a": Phrase("exponent of the power gap; smaller is earlier"),
            "n_examples": Phrase("training examples; 0 draws without end", "the level's"),
            "least_gap": Phrase("fewest tokens between pairs or needles and a question"),
            "delay": Phrase("tokens from a queried key to its answer"),
        },
    ),
    "task needle": PhraseGroup(
        common={},
        further={
            "n_needles": Phrase("lines with a key and a value; one of them is asked for"),
        },
    ),
    "task sudoku": PhraseGroup(
        common={},
        further={
            "puzzles": Phrase("'generated', or files of boards, separated by commas"),
            "ood_puzzles": Phrase("boards of another difficulty to validate on, likewise"),
            "n_boards": Phrase("training boards at most"),
            "n_valid_boards": Phrase("boards of each validation set at most"),
            "givens": Phrase("fewest and most given cells", "a usual range, or any in files"),
            "ood_givens": Phrase("the same for the other difficulty", "a usual range, or any in files"),
            "board_size": Phrase("rows of a board: 4, 6, 9 or 16"),
            "augment": Phrase("train on random symmetric copies of the boards"),
        },
    ),
    "task glue": PhraseGroup(
        common={},
        further={
            "glue_task": Phrase("cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli"),
            "glue_data": Phrase("huggingface, or a folder of tsv files or saved data sets"),
            "glue_tokenizer": Phrase("the pretrained model's: a name or a tokenizer.json"),
        },
    ),
}
PHRASES: dict[str, Phrase] = {
    name: phrase for group in GROUPS.values() for part in group for name, phrase in part.items()
}
