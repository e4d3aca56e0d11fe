"""What the products of a sharded stack take beside nothing but the copies that sharding needs.

    python3 benches/peers/overlap_floor.py --hidden 4096 --ffn 16384 --layers 16 --tokens 2048

One process, one CUDA graph per GPU, no library of ours. Four kinds of steps in turn:

    products           the bf16 products of forward and backward, out of whole weights
    own bytes          the same; between them, copies within the GPU of as many bytes as placing own parts and summing
                       gradients move (bf16 weights and gradients, f32 main grads)
    peers' bytes       the products alone on their stream; beside them, copy engines write to the peers: the own part of
                       every weight, twice, and the peers' slices of every gradient
    both

Nothing waits for a copy, so nothing is exposed: what a kind takes above `products` is what the bytes themselves cost,
by memory bandwidth, by launches between products, or by the power they take from a GPU that stands at its limit. A
limiter can also make products faster beside copies than alone: look at the clocks before you believe a row. Prints milliseconds (medians of the slowest GPU), ratios, and the median
clock and power of each kind.
"""

import argparse
import ctypes
import statistics
import subprocess
import threading
import time

import torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs; all by default")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--ffn", type=int, default=16384)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each kind in each round")
    parser.add_argument("--rounds", type=int, default=3, help="how often the kinds take turns")
    return parser.parse_args()


class Copies:
    """cudaMemcpyAsync on a stream: torch's own copies between GPUs wait for streams of both."""

    def __init__(self):
        self.runtime = ctypes.CDLL(None)
        for name in ("libcudart.so", "libcudart.so.13", "libcudart.so.12"):
            try:
                self.runtime = ctypes.CDLL(name)
                break
            except OSError:
                continue

    def __call__(self, target, source, stream):
        bytes_ = source.numel() * source.element_size()
        status = self.runtime.cudaMemcpyAsync(
            ctypes.c_void_p(target.data_ptr()),
            ctypes.c_void_p(source.data_ptr()),
            ctypes.c_size_t(bytes_),
            ctypes.c_int(3),
            ctypes.c_void_p(stream.cuda_stream),
        )
        if status != 0:
            raise RuntimeError(f"cudaMemcpyAsync: {status}")


class Gpu:
    """What one GPU holds: whole weights, the shard that it sends, and where its peers write what they send."""

    def __init__(self, number, options, gpus):
        self.device = torch.device("cuda", number)
        hidden, ffn, tokens = options.hidden, options.ffn, options.tokens
        self.shapes = [(3 * hidden, hidden), (hidden, hidden), (ffn, hidden), (hidden, ffn)]
        empty = dict(dtype=torch.bfloat16, device=self.device)
        with torch.cuda.device(self.device):
            self.weights = [
                [torch.empty(shape, **empty).uniform_(-0.02, 0.02) for shape in self.shapes]
                for _ in range(options.layers)
            ]
            self.gradients = [torch.empty(shape, **empty) for shape in self.shapes]
            self.inputs = [torch.empty(tokens, shape[1], **empty).uniform_(-1, 1) for shape in self.shapes]
            self.outputs = [torch.empty(tokens, shape[0], **empty) for shape in self.shapes]
            # Products read what never changes, so that their values, and with them their power, stay alike.
            self.errors = [torch.empty(tokens, shape[0], **empty).uniform_(-1, 1) for shape in self.shapes]
            self.below = [torch.empty(tokens, shape[1], **empty) for shape in self.shapes]
            parts = [rows * columns // gpus for rows, columns in self.shapes]
            self.shard = [torch.empty(part, **empty).uniform_(-0.02, 0.02) for part in parts]
            self.landing = [[torch.empty(part, **empty) for part in parts] for _ in range(gpus)]
            self.main_grads = [torch.empty(2, part, dtype=torch.float32, device=self.device) for part in parts]
            self.compute = torch.cuda.Stream(self.device)
            self.sends = [torch.cuda.Stream(self.device) for _ in range(gpus - 1)]
        self.graphs = {}

    def forward(self, layer):
        for x, weight, y in zip(self.inputs, self.weights[layer], self.outputs):
            torch.mm(x, weight.t(), out=y)

    def backward(self, layer):
        for number, weight in enumerate(self.weights[layer]):
            torch.mm(self.errors[number], weight, out=self.below[number])
            torch.mm(self.errors[number].t(), self.inputs[number], out=self.gradients[number])

    def own_bytes(self, copy, is_backward):
        """The own part goes to its place; backward also reads all slices of a gradient and adds them up."""
        for part, place in zip(self.shard, self.landing[self.device.index]):
            copy(place, part, self.compute)
        if is_backward:
            # Slices of bf16 from all GPUs, and main grads read and written: as many bytes as this copy reads
            # and writes, whatever the number of GPUs.
            for grads, gradient in zip(self.main_grads, self.gradients):
                half = grads.numel() // 2
                copy(grads.view(-1)[half:], grads.view(-1)[:half], self.compute)
                copy(gradient.view(-1)[gradient.numel() // 2 :], gradient.view(-1)[: gradient.numel() // 2], self.compute)

    def peers_bytes(self, copy, peers, is_backward):
        for stream, peer in zip(self.sends, peers):
            for _ in range(2 if is_backward else 1):
                for part, place in zip(self.shard, peer.landing[self.device.index]):
                    copy(place, part, stream)

    def record(self, kind, options, copy, peers):
        own, sent = kind in ("own bytes", "both"), kind in ("peers' bytes", "both")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, stream=self.compute):
            layers = list(range(options.layers))
            for is_backward in (False, True):
                for layer in reversed(layers) if is_backward else layers:
                    if sent:
                        # No sooner than the products of the same block, as the gather one block ahead.
                        for stream in self.sends:
                            stream.wait_stream(self.compute)
                        self.peers_bytes(copy, peers, is_backward)
                    if own:
                        self.own_bytes(copy, is_backward)
                    (self.backward if is_backward else self.forward)(layer)
            if sent:
                for stream in self.sends:
                    self.compute.wait_stream(stream)
        self.graphs[kind] = graph


class Sensor(threading.Thread):
    """Clock and power of all GPUs, ten times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.kind, self.seen = None, {}
        query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "100"]
        self.process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        self.start()

    def run(self):
        for line in self.process.stdout:
            try:
                clock, power = (float(field) for field in line.split(","))
            except ValueError:
                continue
            if self.kind is not None:
                self.seen.setdefault(self.kind, []).append((clock, power))

    def median(self, kind):
        seen = self.seen.get(kind) or [(float("nan"), float("nan"))]
        return tuple(statistics.median(values) for values in zip(*seen))


def step(gpus, kind):
    """Milliseconds of the slowest GPU; all are idle before."""
    marks = []
    for gpu in gpus:
        with torch.cuda.device(gpu.device), torch.cuda.stream(gpu.compute):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            gpu.graphs[kind].replay()
            end.record()
            marks.append((begin, end))
    for gpu in gpus:
        torch.cuda.synchronize(gpu.device)
    return max(begin.elapsed_time(end) for begin, end in marks)


def main():
    options = arguments()
    sensor = Sensor()
    number = options.gpus or torch.cuda.device_count()
    copy = Copies()
    gpus = [Gpu(gpu, options, number) for gpu in range(number)]
    for gpu in gpus:
        for peer in gpus:
            if peer is not gpu:
                gpu.landing[0][0].copy_(peer.shard[0])  # enables peer access, from both sides
                peer.landing[0][0].copy_(gpu.shard[0])
        with torch.cuda.device(gpu.device), torch.cuda.stream(gpu.compute):
            gpu.forward(0)
            gpu.backward(0)
        torch.cuda.synchronize(gpu.device)
    kinds = ["products", "own bytes", "peers' bytes", "both"]
    for kind in kinds:
        for gpu in gpus:
            # Each begins with another peer, so that no GPU is asked by all others at once.
            at = gpus.index(gpu)
            gpu.record(kind, options, copy, gpus[at + 1 :] + gpus[:at])
    times = {kind: [] for kind in kinds}
    for turn in range(options.rounds + 1):
        for kind in kinds:
            # The first turn warms the GPUs up; after each change the limiter needs a moment.
            end, half = time.time() + options.seconds, time.time() + options.seconds / 3
            while time.time() < end:
                taken = step(gpus, kind)
                if turn > 0 and time.time() > half:
                    sensor.kind = kind
                    times[kind].append(taken)
            sensor.kind = None
    sensor.process.terminate()
    base = statistics.median(times["products"])
    print(f"{number} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}, {vars(options)}")
    for kind in kinds:
        taken, (clock, power) = statistics.median(times[kind]), sensor.median(kind)
        print(f"{kind:14} {taken:8.2f} ms  {taken / base:6.3f}x  {clock:5.0f} MHz  {power:4.0f} W  {len(times[kind])} steps")


if __name__ == "__main__":
    main()
