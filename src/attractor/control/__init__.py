"""Control of attention logits."""
