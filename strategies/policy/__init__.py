"""A learned policy: a plan is made by a few decisions, of which a small network scores the options.

drawn            problems to learn from and to be judged on, by seed
loads            seconds of a microbatch at each position, and a stage's share of them
outline_options  the options of each field of an outline; stage_ends: where a stage may end
game             the decisions: an outline field after field, then stage after stage; illegal options are left out
features         numbers of a problem and of each option, whatever its size
outcomes         what a finished plan is worth, beside the greedy one of `greedy`
network          the scorer of options; its weights as safetensors, those shipped in `trained`
decoding         plans played by it, many at a time, and the scorer bent towards the best (by `descent`)
strategy         all of this on the problem at hand: `strategy="policy"`
train            makes the weights: the game as `environment` for gymnasium, `ppo` by sb3-contrib
orders           the same for graphs with given costs: `placer place --strategy policy`
"""
