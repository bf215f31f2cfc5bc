"""Chat templates of several families, for tests."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Turns before the last question lose their (empty) thoughts, as in Qwen3: a prefix is not rendered as it is in the whole.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Turns after the last question keep their thoughts, which it writes in its own form; those before lose them (Qwen3's template).
THINKING = (
    "{% set ns = namespace(asked=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}"
    "{% set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in m.content else '' %}"
    "{% if m.role == 'assistant' and loop.index0 > ns.asked %}{{ '<think>\n' ~ thought ~ '\n</think>\n\n' }}{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Its generation prompt opens the thoughts.
OPENING = THINKING.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}")
# It never writes thoughts (DeepSeek-R1's).
THOUGHTLESS = (
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content.split('</think>')[-1] ~ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] | trim }}</s>{% endif %}{% endfor %}"
)
