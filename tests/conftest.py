"""Test set-up: eight virtual CPU devices, whatever the machine."""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
