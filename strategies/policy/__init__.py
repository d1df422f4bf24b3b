"""A learned policy: a plan is made by a few decisions, of which a small network scores the options.

drawn        problems to learn from and to be judged on, by seed
game         the decisions: an outline field after field, then stage after stage; illegal options are left out
features     numbers of a problem and of each option, whatever its size
outcome      what a finished plan is worth, beside the greedy one of `greedy`
environment  the game for gymnasium
network      the policy for MaskablePPO: one scorer for all options; its weights as safetensors
decoding     plans played by it, many at a time
strategy     shipped weights, then tuned to the problem at hand: `strategy="policy"`
train        the command that makes the weights: python -m placer.strategies.policy.train
"""
