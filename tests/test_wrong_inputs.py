"""Wrong inputs of every command end in one line on standard error that names the mistake, and in exit code 2.

A case is a command line as a person types it, and after => the parts of the message. All cases share one folder.
"""

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

from attractor import cli
from attractor.cli import listing
from attractor.runs.run_folder import RunFolder
from attractor.study.stored_runs import compare_runs
from in_process import Command, command_in_process
from tiers import fast_alone

ROOT = Path(__file__).parents[1]
TINY = "--d-model=16 --n-heads=2 --n-layers=1 --d-ff=32 --max-seq-len=64 --seq-len=16 --batch-size=4 --n-steps=2"
# A tokenizer whose pattern takes for ever: the library gives up, by an error that is no Exception.
BOMB = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
    "model": {"type": "BPE", "vocab": {chr(code): code - 32 for code in range(32, 127)}, "merges": []},
}
SETTINGS = {  # files of settings, each with a mistake
    "torn.toml": "lr = 3\nlr = 4\n",
    "stray.toml": "n_stepz = 3\n",
    "word.toml": "lr = 'fast'\n",
    "listed.toml": "lr = [1, 2]\n",
    "single.toml": "betas = 3\n",
    "table.toml": "[task]\nkind = 'text'\n",
    "device.toml": "device = 'cpu'\n",
    "code.toml": "attention = 'raises.py:Mine'\n",
    "field.toml": "[model]\nd_modle = 3\n",
    "odd.toml": "model = 3\n",
    "yes.toml": "qk_norm = 'yes'\n",
    "binary.toml": "\0",
    "code.json": '{"model": {"attention": "raises.py:Mine"}}',
    "few.json": '{"lr": 3}',
}
DEEP = "[" * 0x010101  # so many that Python's reader of JSON gives up
STUDY = """
from attractor.study import Scale, Study, axis
from attractor.train.config import TrainConfig

BASE = TrainConfig().replace(corpus="text.txt", d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps=2, warmup_steps=1)
STUDY = Study(
    title="t", question="q", source="s", rows=axis("attention", "standard", "gated"), baseline="standard",
    scales={"desk": Scale(BASE, seeds=(0,))},
)
"""

# Options that training refuses. Each is added to a `train` command for a small model on text.txt.
TRAINING = """
--device=cud                --lr=inf                    --lr=0                      --n-steps=0
--n-steps=1e3               --warmup-steps=2            --warmup-steps=9            --warmup-steps=-1
--batch-size=0              --seq-len=0                 --seq-len=100000            --d-model=0
--d-model=-8                --d-model=17                --n-heads=0                 --n-heads=3
--n-kv-heads=3              --n-kv-heads=0              --n-layers=0                --n-layers=-1
--d-ff=0                    --vocab-size=1              --vocab-size=0              --max-seq-len=0
--head-dim=0                --head-dim=3                --dropout=2                 --dropout=-0.1
--dropout=nan               --weight-decay=-1           --weight-decay=nan          --weight-decay=inf
--clip=0                    --clip=nan                  --ema=2                     --ema=nan
--seed=-1                   --seed=abc                  --seed=99999999999999999999999 --eval-every=0
--eval-batches=0            --log-every=0               --save-every=-1             --telemetry-every=0
--threads=0                 --threads=100000            --accumulation=3            --accumulation=0
--optimizer=adam            --positions=nope            --mlp=nope                  --regularizer=nope
--rope-theta=0              --rope-theta=nan            --rope-scaling=nope         --norm-eps=0
--max-bad-steps=0           --corpus=nope.txt           --corpus=empty              --corpus=torn-corpus
--out=text.txt              --out=text.txt/inside       --out=occupied              --start=nope
--start=hf                  --start=no-weights          --start=text.txt            --board-size=9
--recompute=nope            --n-iterations=3            --qk-clip=-1                --qk-clip=nan
--norms-per-block=7         --no-such-option=1          --betas=0.9                 --gate-lr=1
--epochs=2                  --regularizer-weight=-1
"""
CASES = """
nope => unknown command 'nope'
runs lst => unknown command 'lst'; did you mean 'list'?
runs list absent => runs are read from a folder, and 'absent' is none
runs list . --where lrr>1 => unknown field 'lrr'
runs list . --sort speeed => unknown field 'speeed'
runs list . --limit -1 => limit must be at least 1, got -1; 
runs list run --columns perplexitty => unknown field 'perplexitty'; did you mean 'perplexity'?
runs compare run => at least 2 finished runs must meet the conditions, got 1
runs prune . --keep bests => unknown keep 'bests'; did you mean 'best'?
runs show text.txt => a run folder must hold config.json
trian => unknown command 'trian'; did you mean 'train'? ('attractor --help' shows all)
data nope
study nope
train --resume=nowhere => run must be a folder that exists ... 'nowhere' does not; 
train --resume=empty
train --resume=torn
train --resume=text.txt
train --resume=hf
train --resume=cmp
train --resume=run --lr=0.1 => lr must be left out with --resume
train --resume=run --out=x => out must be left out with --resume
train --task=sudoku --recipe=sudoku --board-size=5
train --task=sudoku --recipe=sudoku --board-size=4 --givens 9 3
train --task=sudoku --recipe=sudoku --puzzles=nope.csv
train --task=mqar --recipe=mqar --n-pairs=0
train --task=mqar --board-size=4 => board_size must be left out with task 'mqar', since ... of task 'sudoku'; leave it
train --task=mqar --epochs=2 => epochs must be left out with data drawn without end, got 2; give n_steps alone
watch nothing => folder must exist to be watched, and 'nothing' does not
watch . --port=70000 => port must be from 0 to 65535, got 70000; 0 takes a free one
watch run/config.json => folder must be a folder, and 'run/config.json' is a file; give 'run'
train --epochs=inf => epochs must be positive and finite, got inf
train --epochs=0
train --config=x.yaml => config must be a .toml file or a run's config.json, got 'x.yaml'; write NAME = VALUE
train --config=run => config must be a .toml file or a run's config.json, got 'run'; give 'run/config.json'
train --config=nope.toml
train --config=torn.toml => config 'torn.toml' must hold TOML: ... mend
train --config=binary.toml => config 'binary.toml' must hold TOML: ... mend
train --config=torn.json => config 'torn.json' must hold JSON: ... mend
train --config=list.json => config 'list.json' must hold the configuration of a run
train --config=few.json => options by name go into a .toml file
train --config=stray.toml => config 'stray.toml': unknown option --n-stepz; did you mean --n-steps?
train --config=word.toml => config 'word.toml': --lr must be a number, got 'fast'
train --config=listed.toml => lr must be one value, got [1, 2]; write lr = VALUE
train --config=single.toml => betas must be a list of values, got 3; write betas = [...]
train --config=table.toml => task must be one value
train --config=device.toml => device must be left out of a file ... give --device
train --config=code.toml => attention must be left out of a file where it names code, got 'raises.py:Mine'; give
train --config=code.json => unknown attention 'raises.py:Mine'
train --config=field.toml => 'field.toml': unknown model field 'd_modle'; did you mean 'd_model'?
train --config=odd.toml => 'odd.toml' must hold the configuration of a run
train --config=run/config.json --recipe=small => recipe must be left out with --config
train --config=run/config.json --lr=-1 => lr must be positive
train --resume=run --config=run/config.json => config must be left out with --resume
train --code=mine.py => code must be left out
train gated => unknown word gated; write --attention gated ('attractor train --help' shows all)
compare standard --out=x gated => unknown word gated; write MECHANISMS ... before options
train --attention=eular => unknown attention 'eular'; did you mean 'coupled-euler'? ('attractor list' shows all, 
train --n-stepz=3 => --n-stepz; did you mean --n-steps? ('attractor train --help' shows all)
train --d-modle=3 --n-heds=2 => --d-modle, --n-heds; did you mean --d-model, --n-heads?
train --zzzzzz=3 => --zzzzzz ('attractor train --help' shows all)
train --recipe=labtop => unknown recipe 'labtop'; did you mean 'laptop'?
train --size=smal => unknown size 'smal'; did you mean 'small'?
train --task=texts => unknown task 'texts'; did you mean 'text'?
train --schedule=cosin => unknown schedule 'cosin'; did you mean 'cosine'?
train --precision=fp8 => unknown precision 'fp8'
train --corpus=stdlib-cod => unknown corpus 'stdlib-cod'; did you mean 'stdlib-code'?
train --corpus=no/such.txt => corpus must be ... 'no/such.txt' does not exist
train --corpus=empty.txt => corpus must contain text ... 'empty.txt' has none ... give a file
train --corpus=binary.bin => corpus file must be UTF-8 text ... binary.bin' ... a NUL byte at offset 4
train --corpus=short.txt => part of corpus 'short.txt' ... at least seq_len + 1 = 65 tokens ... give more text
train --corpus=text.txt --device=cud => device must be ... 'cud' ... try cpu, cuda or auto
train --corpus=text.txt --out=occupied => 'occupied' ... no run ... choose a new or empty folder
train --corpus=text.txt --out=run --lr=0.25 => 'run' holds a run with another configuration ... choose another
train --corpus=text.txt --out=/dev/null/run => /dev/null/run ... choose another place
train --batch-size=auto --accumulation=2 => accumulation must be left out
train --batch-size=1.5 => --batch-size must be a whole number or auto, got '1.5'
train --betas 0.9 => --betas must be two numbers, got '0.9'
train --compile=maybe => compile must be given without a value, got 'maybe'; write --compile or --no-compile
train --config=yes.toml => qk_norm must be true or false, got 'yes'; write qk_norm = true
train --qk-norm yes => qk_norm must be given without a value, got 'yes'; write --qk-norm or --no-qk-norm
train --no_qk_norm=3 => got '3'; write --qk-norm or --no-qk-norm
train --heads=3 --steps=3 => --heads, --steps; did you mean --n-heads, --n-steps?
train --corpus=broken.jsonl => but 300 of 600 are, the first is line 1 of 'broken.jsonl': not JSON
train --corpus=https://example.com/x.txt => nothing is read from an address, so download it and give the file
train --corpus=owner/set => 'attractor data prepare owner/set --out FOLDER' prepares one of the Hugging Face Hub
train --d-model=65 => d_model must be divisible by n_heads=4, got 65; or give head_dim
train --givens 20 => --givens must be two whole numbers, got '20'
train --lr=fast => --lr must be a number, got 'fast' ('attractor train --help' shows all)
train --lr=nan => lr must be positive and finite, got nan
train --lr=-1 => 'attractor train --help' shows what --lr may be
train --n-steps=-1 => n_steps must be an integer of at least 1, got -1
train --n-steps=1.5 => --n-steps must be a whole number, got '1.5'
train --positions=learned --max-seq-len=32 --seq-len=33 => seq_len must be at most max_seq_len=32, got 33; or raise
train --seed => seed must have a value; write --seed INT ('attractor train --help' shows all)
train --start={seed[0]} => only {attention} and {seed} ... '{seed[0]}'
train --start={attention.x} => only {attention} and {seed} ... '{attention.x}'
train --vocab-size=100 => vocab_size must be at least the task's 320, got 100 ... vocab_size=320
train --resume=empty-config
train --resume=list-config
train --resume=odd-model
train --resume=odd-field
train --resume=run --attention=gated => attention must be left out with --resume
train --resume=run --size=small => size must be left out with --resume
train --resume=run --epochs=2 => epochs must be left out with --resume
train --resume=run --recipe=mqar => recipe must be left out with --resume
compare nope
compare standard standard
compare uniform
compare standard --seeds => seeds must be at least one
compare standard --seeds 1 1 => seeds must be without repetition, got '1 1'
compare standard --seeds -1 => seeds must be whole numbers from 0 up
compare run run --device=cpu => device must be left out where run folders are compared
compare standard --seed=3
compare standard --margin=0
compare standard --margin=nan
compare standard --within=soon => within must be a time with its unit, got 'soon'
compare standard --within=-5m
compare standard --within=0s => within must be a time above zero
compare standard --within=10m --seeds 3 => seeds must be at least two
compare standard --within=10m --thorough => thorough must be left out with --within
compare run other --config=run/config.json => config must be left out where run folders are compared
compare standard --config=stray.toml => unknown option --n-stepz
compare standard --recall => recall must be left out without --thorough, got True; give both
compare standard --thorough --match=flops => match must be tokens or parameters with --thorough, got 'flops'; a lead is
compare run other --within=10m => within must be left out where run folders are compared
compare standard --corpus=text.txt --out=occupied
compare standard --corpus=text.txt --seq-len=16 --out=run
compare run torn
compare run hf
compare run imported
compare run --seeds 1
compare run --lr=3
compare run other --out=occupied
compare run other --out=text.txt
compare run empty-summary
compare standrad => unknown attention 'standrad'; did you mean 'standard'?
compare --attention=gated => unknown option --attention; write attractor compare MECHANISMS ...
compare runs/a runs/b => 'runs/a' is neither ... 'attractor runs list' shows runs
compare differential --d-model=12 --n-heads=4 => differential
compare --seeds 1,2 => --seeds must be whole numbers with a space between them, or a range as 0-3, got '1,2'
compare --seeds 4-1 => seeds must be at least one
compare --seeds=0-2 2 => seeds must be without repetition, got '0 1 2 2'
compare --lr 1e-3,2e-3 => --lr must be numbers with a space between them, got '1e-3,2e-3'
compare --match=stored => unknown match 'stored'; known: flops, parameters, seconds, tokens
compare standard --corpus=text.txt --workers=0 => workers must be at least 1, got 0
compare standard --corpus=empty.txt => corpus must contain text ... 'empty.txt' has none
compare standard --corpus=binary.bin => corpus file must be UTF-8 text ... binary.bin'
compare standard --corpus=short.txt => part of corpus 'short.txt' ... at least seq_len + 1 = 65 tokens
compare standard --batch-size=auto => batch_size must be a number in a comparison, got auto
compare standard --corpus=text.txt --keep=0 => keep must be at least 1, got 0
plan nope => unknown attention 'nope'
plan standard standard => mechanisms must be without repetition, got 'standard standard'
plan mla --attention=gated => attention must be left out where mechanisms are named
plan --resume=nowhere
plan --json=perhaps
plan --resume=run --lr=0.1 => lr must be left out with --resume
plan --device=cpu --devices=3 => batch_size / accumulation must be divisible by the number of processes, 3, got 4 / 1
plan --devices=2 --parallel=fdsp => unknown parallel 'fdsp'; did you mean 'fsdp'?
generate => run must be given; write attractor generate RUN
generate --run=run => unknown option --run; write attractor generate RUN
generate nowhere => run must be a folder that exists ... 'nowhere' does not; 
generate empty
generate text.txt
generate cmp
generate hf
generate torn
generate no-weights => run must have a checkpoint, and 'no-weights' has none yet; train it first
generate flipped => damaged checkpoint ... step-00000002 ... choose the other one
generate bad-best
generate bad-tokenizer
generate prepared
generate run --checkpoint=first => unknown checkpoint 'first' ... best ... last
generate run --temperature=-1 => temperature must be at least 0 ... -1
generate run --temperature=nan
generate run --temperature=inf
generate run --top-k=0 => top_k must be an integer of at least 1, got 0
generate run --top-p=0
generate run --top-p=1.5 => top_p must be above 0 and at most 1, got 1.5
generate run --max-new-tokens=-1 => max_new_tokens must be an integer of at least 0, got -1
generate run --max-new-tokens=two
generate run --device=nope
generate run --seed=-1
generate run --seed=99999999999999999999999
report => source must be given; write attractor report SOURCE
report nope => source must exist, and 'nope' does not
report empty
report text.txt
report text.txt --out=x => must hold a study's record
report record.json --out=x
report list.json --out=x
report run --store=x.json => store must be left out for a run ... x.json
report run --formats gif svg => formats must be left out for a run, which is no study, got 'gif svg'; leave it out
report cmp --formats gif => unknown format of figures 'gif'
report cmp --store=empty
report torn
report torn-study
report empty-study
report torn-metrics
report text-step => line 1 of 'text-step/metrics.jsonl' is damaged
report null-step => line 1 of 'null-step/metrics.jsonl' is damaged
judge text-loss other => line 1 of 'text-loss/metrics.jsonl' is damaged
report hf
report prepared
report several
claims NOPE => unknown claim 'NOPE'
claims c1 => written in capitals
check standard --d-model=30 => d_model must be divisible by n_heads=4, got 30; or give head_dim
claims ./nope => check the path
claims ./text.txt
claims empty => holds none; see papers/
claims empty {ROOT}/papers => one folder of papers
claims --root=nope => root must be a folder of studies
claims --write=empty
bench eular => unknown attention 'eular'; did you mean 'coupled-euler'
bench standard --size=smal => unknown size 'smal'; did you mean 'small'
bench standard --size=itrsa => size must be that of a Transformer or a FastSlow, got 'itrsa'
bench standard --size=fast-slow --n-layers=2 => n_layers must be left out with size 'fast-slow' ... got 2; change
bench standard --size=fast-slow --lengths 64 4 => pool_factor must be below seq_len=4, got 4
bench standard --d-model=17
bench standard --n-heads=0
bench standard --n-layers=0 => n_layers must be at least 1, got 0
bench standard --d-ff=0
bench standard --vocab-size=0
bench standard --lengths 0 => lengths must be one or more of at least 1
bench standard --tokens=0 => tokens must be at least 1, got 0; leave it out
bench standard --precision=fp8 => unknown precision 'fp8'
bench --attention=gated => write attractor bench MECHANISMS ...
bench standard --rounds=-1 => rounds must be at least 0, got -1
bench standard --rounds=two
bench standard --decode=-1 => decode must be at least 0, got -1
bench standard --patience=0 => patience must be positive
bench standard --patience=nan
bench standard --baseline=standrad => did you mean 'standard'
bench coupled-euler:
bench coupled-euler:n_steps
bench coupled-euler:n_steps=0
bench coupled-euler:nope=3
bench coupled-euler:dt=-1
bench coupled-euler:dt=inf
bench coupled-euler:softcap=soft
bench standard --device=nope
bench standard --out=empty
bench standard --out=text.txt/x.json => 'text.txt'
measure run => on must be given; write attractor measure MODELS ... --on TEXT
measure --on=text.txt => models must be at least one folder
measure nope --on=text.txt
measure empty --on=text.txt => model must be a run folder or a Hugging Face folder ... empty' has no con
measure run --on=nope.txt
measure run --on=empty.txt => on must hold text, and 'empty.txt' has none; give a file with text
measure run --on=binary.bin
measure run --on=text.txt --length=0
measure run --on=text.txt --n-samples=0
measure run --on=text.txt --layers 7 => layers must be from 0 to
measure run --on=text.txt --k=-1
measure run --on=text.txt --memory=nan
measure run --on=text.txt --precision=fp8 => unknown precision 'fp8'
measure run --on=text.txt --device=nowhere => device must be one that torch can use here
measure run --on=text.txt --seed=-1
measure run --on=text.txt --checkpoint=nope
measure run --on=text.txt --out=text.txt
measure flipped --on=text.txt
measure torn --on=text.txt
measure cmp --on=text.txt
evaluate => model must be given; write attractor evaluate MODEL
evaluate nope
evaluate empty
evaluate text.txt
evaluate no-weights
evaluate flipped
evaluate run --on=nope
evaluate run --on=none.txt => on must be a text file
evaluate run --on=stdlib-docs --column=x => column must be left out
evaluate openai-community/gpt2 --on=text.txt => nothing is fetched
evaluate run --on=text.txt --window=0
evaluate run --on=text.txt --stride=0
evaluate run --on=text.txt --window=8 --stride=9 => stride must be between
evaluate run --on=text.txt --batch-size=0
evaluate run --on=text.txt --votes=3 => votes must be left out
evaluate run --on=text.txt --precision=fp8 => unknown precision
evaluate run --on=text.txt --out=text.txt
evaluate run --against=nope
evaluate run --n-shots=3 => n_shots must be left out without --tasks
evaluate run --precision=fp32 => precision must be left out where a run is measured on its validation sets
evaluate run --window=8 => window must be left out where a run is measured on its validation sets
evaluate run --tasks nope --on=text.txt => on must be left out with --tasks
evaluate run --tasks nope --include-path=none => include_path must be a folder
evaluate run --tasks nope --limit=0
evaluate run --n-iterations 3
evaluate imported
evaluate x --votes=a => --votes must be a whole number, got 'a'
solve => puzzle must be given; write attractor solve PUZZLE
solve 0000 --exact => puzzle must be its cells in a row (16, 36, 81, 256 digits, 0 or . ... got '0000'
solve nope/such.txt --exact => a file that is there, got 'nope/such.txt'; check the path
solve 1..e............ --exact => boards must hold integers from 0 (blank) to 4; check the
solve 1..x............ --exact => got '1..x............'; check the cells
solve 1............... --exact => exactly one solution, but has several
solve empty.txt --exact => puzzle
solve 1000002003000004 => run must be given, or exact instead of it; 'attractor train --task sudoku'
solve 1000002003000004 --run=nope => run must be a folder that exists, and 'nope' does not
solve 1000002003000004 --run=run
solve 1000002003000004 --run=run --exact => run must be left out with exact, which searches
solve 1000002003000004 --exact --votes=3 => votes must be left out with exact
solve 1000002003000004 --run=run --votes=0 => votes must be at least 1, got 0; 1 is no vote
solve 1000002003000004 --run=run --n-iterations=0 => n_iterations must be at least 1, got 0
solve 1100340021004300 --exact => board must have exactly one solution, but has none
solve 9900340021004300 --exact => from 0 (blank) to 4
export => run must be given; write attractor export RUN
export nope
export empty
export cmp
export torn
export no-weights
export flipped
export run --to=onnx
export run --out=occupied
export run --out=text.txt
export run --out=hf
export run --precision=fp8
export run --checkpoint=nope
export run --max-shard-size=big
export hf
import => model must be given; write attractor import MODEL
import nope
import empty
import run
import torn
import deep-hf => 'deep-hf/config.json' is damaged: it must hold one JSON object
import deep-header => 'deep-header/model.safetensors' is damaged
import deep-tokenizer => 'deep-tokenizer/tokenizer.json' is damaged: it must hold one JSON object
evaluate deep-hf --on=text.txt => 'deep-hf/config.json' is damaged: it must hold one JSON object
import hf --out=occupied
import hf --out=text.txt
import hf --out=run
convert run => attention must be given; write attractor convert MODEL --attention NAME
convert run --attention=nope
convert run --attention=mla
convert run --attention=differential
convert run --attention=uniform
convert nope --attention=coupled-euler
convert cmp --attention=coupled-euler
convert flipped --attention=coupled-euler
convert run --attention=coupled-euler --out=occupied
convert run --attention=coupled-euler --out=text.txt
convert run --attention=coupled-euler --seed=-1
data prepare
data prepare text.txt
data prepare text.txt --out=text.txt
data prepare text.txt --out=text.txt/inside
data prepare text.txt --out=occupied
data prepare nope.txt --out=p
data prepare https://example.com/x.txt --out=p => nothing is read from an address
data prepare empty.txt --out=p
data prepare binary.bin --out=p
data prepare text.txt --out=p --tokenizer=nope
data prepare text.txt --out=p --tokenizer=bpe:0
data prepare text.txt --out=p --tokenizer=torn.json
data prepare text.txt --out=p --max-tokens=many
data prepare text.txt --out=p --max-tokens=0
data prepare text.txt --out=p --valid-share=0
data prepare text.txt --out=p --valid-share=nan
data prepare text.txt --out=p --max-bad=2
data prepare text.txt --out=p --workers=0
data prepare text.txt --out=p --column=
data prepare *.nope --out=p
data prepare as.txt --out=q --tokenizer=bomb.json => tokenizer must split any text
data verify => folder must be given; write attractor data verify FOLDER
data verify nope
data verify empty
data verify text.txt
data verify torn-corpus
data verify cut-corpus
data verify run
study run
study run nope.py => study must be a file that exists, and 'nope.py' does not
study run small.txt
study run empty
study run syntax.py
study run bad-import.py
study run raises.py
study run exits.py
study run no-study.py
study run binary.bin
study plan raises.py
study plan study.py --scale=nope => unknown scale 'nope'
study plan study.py --seeds 1 1
study plan study.py --device=nope
study run study.py --scale=nope => unknown scale 'nope'
study run study.py --launcher=nope => unknown launcher 'nope'
study run study.py --workers=0
study run study.py --part=3/2 => part must be a share as 2/3
study run study.py --seeds 1 1
study run study.py --seeds
study run study.py --seeds -1
study run study.py --device=nope
study run study.py --save-every=0
study run study.py --parallel=nope => unknown parallel 'nope'
study run study.py --root=occupied/letter.txt
study list empty
study list nope => folder must hold study files
study list study.py => folder must be a folder, and 'study.py' is a file; give '.'
study run study.py --columns x => unknown column 'x'; known: none
study rum => unknown command 'rum'; did you mean 'run'?
study run study.py --rows gate => unknown row 'gate'
study run study.py --keep=0 => keep must be at least 1, got 0
study run study.py --from-record absent.json => must hold a study's record: No such file
study run study.py --from-record study.py => must hold a study's record, and is damaged
list stray => unknown name 'stray'
list --name=gated => unknown option --name; write attractor list NAME
race => baseline and value and margin must be given; write attractor race --baseline TEXT --value TEXT --margin FLOAT
list coupled-eular => did you mean 'coupled-euler'?
data prepair => unknown command 'prepair'; did you mean 'prepare'? ('attractor data --help' shows all)
"""
TRAIN = f"train {TINY} --corpus=text.txt"
ALL = [f"{TRAIN} {option}" for option in TRAINING.split()] + CASES.strip().splitlines()
PLANNED = [case for case in ALL if case.startswith("train --") and TRAIN not in case and "--resume" not in case]
NO_GPU = [f"{command} --device=cuda" for command in ("train", "generate run", "bench standard", "study run study.py")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the folder of all cases: two runs, the exports of one of them, and damaged copies."""
    folder = tmp_path_factory.mktemp("wrong")
    here = Path.cwd()
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        fill(patch)
    yield folder
    os.chdir(here)


def fill(patch: pytest.MonkeyPatch) -> None:
    def attractor(line: str) -> None:
        patch.setattr("sys.argv", ["attractor", *shlex.split(line)])
        cli.main()

    Path("text.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(300)))
    for seed, name in enumerate(("run", "other")):
        attractor(f"train {TINY} --eval-batches=1 --device=cpu --corpus=text.txt --seed={seed} --out={name}")
    compare_runs([Path("run"), Path("other")], Path("cmp"), "attractor compare run other")
    attractor("export run --out=hf")
    attractor("import hf --out=imported")
    attractor("data prepare text.txt --out=prepared")

    texts = {
        "empty.txt": "",
        "short.txt": "a few words\n",
        "broken.jsonl": '{"text":\n{"text": "a b c"}\n' * 300,
        "small.txt": "not a study, {just} text\n",
        "syntax.py": "STUDY = (\n",
        "bad-import.py": "import os\nimport nosuchmodule\n",
        "raises.py": "def two_lines():\n    raise RuntimeError('one\\ntwo')\n\n\ntwo_lines()\n",
        "exits.py": "import sys\nsys.exit(3)\n",
        "no-study.py": "x = 1\n",
        "study.py": STUDY,
        "record.json": "{}",
        "list.json": "[1]",
        "torn.json": "{",
        "as.txt": f"{'a' * 60}b\n" * 50,
        "bomb.json": json.dumps(BOMB),
        "occupied/letter.txt": "dear",
        **SETTINGS,
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("binary.bin").write_bytes(b"\x89PNG\0\1")
    Path("empty").mkdir()
    damaged = {
        "torn": ("run", "config.json", "{"),
        "bad-best": ("run", "checkpoints/best.json", "{"),
        "bad-tokenizer": ("run", "tokenizer.json", "{"),
        "torn-metrics": ("run", "metrics.jsonl", "{\n"),
        "text-step": ("run", "metrics.jsonl", '{"step": "x", "tokens": 1}\n'),
        "null-step": ("run", "metrics.jsonl", '{"step": null, "tokens": 1}\n'),
        "text-loss": ("run", "metrics.jsonl", '{"step": 1, "tokens": 1, "valid_loss": "x"}\n'),
        "deep-hf": ("hf", "config.json", DEEP),
        "deep-header": ("hf", "model.safetensors", "\1\1\1\0\0\0\0\0" + DEEP),
        "deep-tokenizer": ("hf", "tokenizer.json", DEEP),
        "empty-summary": ("run", "summary.json", "{}"),
        "empty-config": ("run", "config.json", "{}"),
        "list-config": ("run", "config.json", "[]"),
        "odd-model": ("run", "config.json", '{"model": {"d_modle": 3}}'),
        "odd-field": ("run", "config.json", '{"lerning_rate": 1}'),
        "flipped": ("run", "checkpoints/step-00000002/model.safetensors", "x"),
        "torn-study": ("cmp", "study.json", "{"),
        "empty-study": ("cmp", "study.json", "{}"),
        "torn-corpus": ("prepared", "manifest.json", "{"),
        "cut-corpus": ("prepared", "train-00000.tokens", "x"),
        "several/one": ("cmp", "study.json", "{}"),
        "several/two": ("cmp", "study.json", "{}"),
    }
    for name, (source, file, text) in damaged.items():
        shutil.copytree(source, name)
        Path(name, file).write_text(text)
    for name in ("text-step", "null-step", "text-loss"):
        Path(name, "seal.json").unlink()  # as anybody can
    shutil.copytree("run", "no-weights", ignore=shutil.ignore_patterns("step-*", "best.json"))


@pytest.fixture
def attractor(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(place)
    return command_in_process(monkeypatch, capsys)


def what_was_typed(line: str) -> set[str]:
    """Return every word after the command, with the name, the value and the file name of an option also separately."""
    words = {part for word in line.replace(TRAIN, "train").split()[1:] for part in re.split("[=:]", word.strip("-"))}
    return {form for word in words for form in (word, word.replace("-", "_"), Path(word).name) if form}


def files_of_runs() -> dict[Path, tuple[int, int]]:
    """Return the size and time of change of every file, and of what a run that has begun would add."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in Path().rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", ALL, ids=[case.replace(TRAIN, "train") for case in ALL])
def test_a_wrong_input_is_one_line_that_names_it(attractor: Command, case: str) -> None:
    """Criterion: exit code 2 and one line on standard error, with a typed word or with the parts that the case
    requires. No file is changed, and no run has begun."""
    line, _, parts = case.partition(" => ")
    before = files_of_runs()
    code, _, err = attractor(*shlex.split(line.replace("{ROOT}", str(ROOT))))
    assert code == 2, (code, err)
    (said,) = err.splitlines()
    assert said.startswith("error: ")
    assert all(part in said for part in parts.split(" ... ")), said
    assert parts or any(word in said for word in what_was_typed(line)), said
    after = files_of_runs()
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after.keys() - before.keys() if path.name in ("metrics.jsonl", "best.json")]


@pytest.mark.parametrize("case", PLANNED)
def test_a_plan_refuses_what_training_refuses_in_the_same_line(attractor: Command, case: str) -> None:
    options = shlex.split(case.partition(" => ")[0])[1:]
    refused, said = attractor("train", *options), attractor("plan", *options)
    assert said.code == 2
    assert said.err == refused.err.replace("attractor train", "attractor plan")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("line", NO_GPU)
def test_a_missing_gpu_is_refused(attractor: Command, line: str) -> None:
    code, _, err = attractor(*shlex.split(line))
    assert (code, len(err.splitlines())) == (2, 1)
    assert "'cuda'; try cpu, cuda or auto" in err


def test_no_case_occurs_twice_and_there_are_many() -> None:
    assert len({*ALL}) == len(ALL) > 300


@pytest.mark.parametrize(
    ("number", "next_step"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "make room there"),
        (errno.EROFS, "choose another place"),
        (errno.EACCES, "change its permissions"),
        (errno.ENOENT, "check the path"),
        (errno.EISDIR, "this is a folder"),
        (errno.ENOTDIR, "a part of that path is a file"),
    ],
    ids=errno.errorcode.get,
)
def test_each_error_of_the_system_has_a_next_step_of_its_own(
    attractor: Command, monkeypatch: pytest.MonkeyPatch, number: int, next_step: str
) -> None:
    """Criterion: only the message for a full disk advises to free space."""

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number), "a/place")

    monkeypatch.setattr(listing, "say", fails)
    code, _, err = attractor("list")
    (said,) = err.splitlines()
    assert code == 2
    assert said.startswith(f"error: {os.strerror(number)}: 'a/place'; ")
    assert next_step in said
    assert ("make room" in said) == (number in (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.parametrize("place_of_write", fast_alone(["metrics", "checkpoint", "best"], "checkpoint"))
def test_a_full_disk_ends_a_run_with_the_command_that_resumes_it(
    attractor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place_of_write: str
) -> None:
    """Criterion: the error is one line with exit code 2. With free space, the printed command finishes the run with the
    result of an undisturbed one."""
    options = f"train {TINY} --n-steps=8 --save-every=2 --eval-every=4 --log-every=1 --eval-batches=1 --device=cpu"
    asked = [*shlex.split(options), "--corpus=text.txt"]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert attractor(*asked, f"--out={whole}")[0] == 0

    def steps() -> list[str]:
        return sorted(path.name for path in (broken / "checkpoints").glob("step-*"))

    def refuse_after(name: str, when: str) -> None:
        really = resolve_name(name)

        def write(*arguments: object, **options: object) -> object:
            if when in steps() and (really is not Path.open or "ab" in arguments):
                raise full
            return really(*arguments, **options)

        monkeypatch.setattr(name, write)

    name, when = {
        "metrics": ("pathlib.Path.open", "step-00000004"),
        "checkpoint": ("attractor.train.checkpoint.flush_to_disk", "step-00000004"),
        "best": ("attractor.train.checkpoint.mark_best", "step-00000004"),
    }[place_of_write]
    with monkeypatch.context():
        refuse_after(name, when)
        code, _, err = attractor(*asked, f"--out={broken}")
    monkeypatch.undo()
    (said,) = err.splitlines()
    assert code == 2
    assert "No space left on device; make room" in said
    assert said.endswith(f". Resume: attractor train --resume {broken} --device cpu")
    assert "step-00000004" in steps()
    assert not RunFolder.open(broken).finished
    code, _, err = attractor(*shlex.split(said.partition("Resume: attractor ")[2]))
    assert (code, err) == (0, "")
    ends = [json.loads((run / "summary.json").read_text()) for run in (whole, broken)]
    assert ends[0]["valid_loss"] == ends[1]["valid_loss"]
