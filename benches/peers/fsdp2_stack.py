"""The stack of `warpweft bench stack` in PyTorch: whole weights on every GPU, and sharded by FSDP2.

    torchrun --nproc-per-node 4 benches/peers/fsdp2_stack.py --hidden 4096 --ffn 16384 --layers 16 --tokens 8192

A block is

    middle = x + proj(qkv(x)[..., :H])
    output = middle + fc2(gelu_tanh(fc1(middle)))

in bf16 without biases, and the loss is the sum of the last output. A step is forward and backward; with `--optimizer`
also AdamW. Rank 0 prints a JSON line for each variant: median milliseconds of a step, and of the host until everything
is enqueued. Devices are idle and ranks have met before every step.

Variants: `resident` and `resident_graph` communicate nothing; `fsdp2_f32_prefetchN` shards f32 parameters and gathers N
blocks ahead in bf16; `fsdp2_bf16_prefetchN` shards bf16 parameters. Gradients are reduced in bf16.
"""

import argparse
import json
import os
import time
from fnmatch import fnmatch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.hidden = hidden
        for name, rows, columns in (
            ("qkv", 3 * hidden, hidden),
            ("proj", hidden, hidden),
            ("fc1", ffn, hidden),
            ("fc2", hidden, ffn),
        ):
            self.register_parameter(name, nn.Parameter(torch.empty(rows, columns)))

    def draw(self):
        """Uniform in ±1/sqrt(inputs), as ours."""
        for weight in self.parameters():
            bound = weight.shape[1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x):
        queries = F.linear(x, self.qkv)[..., : self.hidden]
        middle = x + F.linear(queries, self.proj)
        return middle + F.linear(F.gelu(F.linear(middle, self.fc1), approximate="tanh"), self.fc2)


class Stack(nn.Module):
    def __init__(self, layers, hidden, ffn):
        super().__init__()
        self.blocks = nn.ModuleList(Block(hidden, ffn) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def resident(args, device):
    torch.manual_seed(0)
    stack = Stack(args.layers, args.hidden, args.ffn).to(device, torch.bfloat16)
    with torch.no_grad():
        for block in stack.blocks:
            block.draw()
    return stack


def sharded(args, device, mesh, prefetch, dtype):
    with torch.device("meta"):
        stack = Stack(args.layers, args.hidden, args.ffn).to(dtype)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in stack.blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    fully_shard(stack, mesh=mesh, mp_policy=precision)
    stack.to_empty(device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        for block in stack.blocks:
            block.draw()
    blocks = list(stack.blocks)
    for number, block in enumerate(blocks):
        if prefetch:
            block.set_modules_to_forward_prefetch(blocks[number + 1 : number + 1 + prefetch])
            block.set_modules_to_backward_prefetch(blocks[max(0, number - prefetch) : number][::-1])
    return stack


def stepper(stack, x, optimizer):
    def step():
        source = x.detach().requires_grad_(True)
        loss = stack(source).sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        stack.zero_grad(set_to_none=True)
        return loss

    return step


def recorded(step):
    """The same step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay


def measure(step, steps, warm):
    loss = None
    for _ in range(warm):
        loss = step()
    walls, hosts = [], []
    for _ in range(steps):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step()
        hosts.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - begin)
    # A step takes as long as on the slowest rank.
    slowest = torch.tensor([walls, hosts], dtype=torch.float64, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    walls, hosts = slowest.tolist()
    middle = steps // 2
    return 1e3 * sorted(walls)[middle], 1e3 * sorted(hosts)[middle], loss.float().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 4096), ("ffn", 16384), ("layers", 16), ("tokens", 8192), ("steps", 10), ("warm", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--optimizer", action="store_true", help="end steps with AdamW at a learning rate of 0")
    parser.add_argument("--only", default="*", help="pattern of variants to measure")
    args = parser.parse_args()

    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world,))
    torch.manual_seed(1)
    x = 0.1 * torch.randn(args.tokens, args.hidden, device=device, dtype=torch.bfloat16)

    def run(name, make):
        if not fnmatch(name, args.only):
            return
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        wall, host, loss = measure(make(), args.steps, args.warm)
        if rank == 0:
            line = {
                "variant": name,
                "world": world,
                "hidden": args.hidden,
                "ffn": args.ffn,
                "layers": args.layers,
                "tokens": args.tokens,
                "optimizer": args.optimizer,
                "step_ms": round(wall, 3),
                "host_ms": round(host, 3),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
                "loss": loss,
                "torch": torch.__version__,
            }
            print(json.dumps(line), flush=True)

    def make(stack, graph=False):
        optimizer = None
        if args.optimizer:
            optimizer = torch.optim.AdamW(stack.parameters(), lr=0.0, weight_decay=0.0, fused=True, capturable=graph)
        step = stepper(stack, x, optimizer)
        return recorded(step) if graph else step

    run("resident", lambda: make(resident(args, device)))
    run("resident_graph", lambda: make(resident(args, device), graph=True))
    for shards, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for prefetch in (0, 1, 2):
            run(
                f"fsdp2_{shards}_prefetch{prefetch}",
                lambda: make(sharded(args, device, mesh, prefetch, dtype)),
            )
    dist.destroy_process_group()


main()
