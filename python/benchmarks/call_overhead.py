"""Prints the CPU microseconds of a call of an operator: without a gradient, forward, and forward with backward.

    python call_overhead.py [--device cuda] [--tokens N]

On a GPU it also prints the milliseconds of Taylor attention with 4 x 2,048 tokens in bf16, called from Python and as a CUDA graph, and of the
least that torch's autograd takes there: an operator whose kernels take no time to speak of.

torch runs the backward pass of GPU tensors in a thread of its own, which the calling thread wakes and waits for. With
torch.autograd.set_multithreading_enabled(False) it runs in the calling thread: the columns "in this thread".

With few tokens the kernels take little time, so the figures are the cost of Python, of torch's dispatcher and autograd, and of the argument
checks. A figure is the least of many short runs. On the CPU it is the thread's CPU time, so that other programs hardly change it. On a GPU
it is the time until the calls return, which includes autograd's thread but not the kernels.
"""
import argparse
import time

import torch
from based_cpp import ops

HEADS, FEATURE_DIM, HEAD_DIM, WIDTH = 1, 8, 8, 64
CALLS, RUNS = 10, 100


def cases(tokens, device):
    """{name: (function of the differentiable tensors, these tensors)}."""
    def tensor(*shape):
        return torch.randn(shape, device=device, requires_grad=True)

    q, k, v = tensor(tokens, HEADS, FEATURE_DIM), tensor(tokens, HEADS, FEATURE_DIM), tensor(tokens, HEADS, HEAD_DIM)
    x, weight, taps, bias = tensor(tokens, WIDTH), tensor(WIDTH), tensor(WIDTH, 3), tensor(WIDTH)
    cu_seqlens = torch.tensor([0, tokens], device=device)
    return {
        "taylor_attention": (lambda q, k, v: ops.taylor_attention(q, k, v, cu_seqlens, final_state=False)[0], (q, k, v)),
        "causal_attention": (lambda q, k, v: ops.causal_attention(q, k, v, cu_seqlens, cu_seqlens, 0, 1.0), (q, k, v)),
        "short_conv": (lambda x, taps: ops.short_conv(x, taps, None, None, True, cu_seqlens)[0], (x, taps)),
        "rms_norm": (lambda x, weight: ops.rms_norm(x, weight, 1e-5), (x, weight)),
        "layer_norm": (lambda x, weight, bias: ops.layer_norm(x, weight, bias, 1e-5), (x, weight, bias)),
        "swiglu": (ops.swiglu, (x,)),
        "torch.nn.functional.linear": (torch.nn.functional.linear, (x, x)),
    }


def in_this_thread(call):
    """`call` with backward passes that run in the thread that asks for them."""
    def single_threaded():
        with torch.autograd.set_multithreading_enabled(False):
            call()

    return single_threaded


def stages(function, tensors):
    """The functions whose calls are timed."""
    grad = torch.ones_like(function(*tensors))

    def without_gradient():
        with torch.no_grad():
            function(*tensors)

    def forward():
        function(*tensors)

    def forward_backward():
        torch.autograd.grad(function(*tensors), tensors, grad)

    return without_gradient, forward, forward_backward, in_this_thread(forward_backward)


def microseconds(calls, device):
    """The least mean time of CALLS calls, for each of `calls`. They take turns, so that all meet the machine's quiet moments."""
    clock = time.thread_time if device == "cpu" else time.perf_counter
    best = [float("inf")] * len(calls)
    for run in range(RUNS + 1):
        for i, call in enumerate(calls):
            if device != "cpu":
                torch.cuda.synchronize()
            begin = clock()
            for _ in range(CALLS):
                call()
            if run > 0:  # the first run warms up
                best[i] = min(best[i], (clock() - begin) / CALLS * 1e6)
    return best


def milliseconds(call, calls=100):
    """The mean time on the GPU from the first call to the end of the last one's kernels."""
    for _ in range(10):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def as_graph(call):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def print_kernel_times():
    def tensor(*shape):
        return (0.5 * torch.randn(shape, device="cuda")).bfloat16().requires_grad_()

    rows, length, heads = 4, 2048, 16
    q, k, v = (tensor(rows * length, heads, size) for size in (16, 16, 64))
    cu_seqlens = torch.arange(rows + 1, device="cuda") * length
    calls = stages(lambda q, k, v: ops.taylor_attention(q, k, v, cu_seqlens, final_state=False)[0], (q, k, v))
    print(f"taylor_attention, {rows} x {length} tokens, {heads} heads, bf16: milliseconds on {torch.cuda.get_device_name()}")
    for name, call in zip(("without a gradient", "forward", "forward and backward"), calls):
        print(f"{name:28}{milliseconds(call):8.3f}, as a CUDA graph {milliseconds(as_graph(call)):.3f}")
    print(f"{'... in this thread':28}{milliseconds(calls[-1]):8.3f}")
    x = torch.randn(16, device="cuda", requires_grad=True)
    *_, least, least_in_this_thread = stages(torch.neg, (x,))
    print(f"{'torch.neg of 16 elements':28}{milliseconds(least):8.3f}, in this thread {milliseconds(least_in_this_thread):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {arguments.device}, {arguments.tokens} tokens: microseconds per call")
    print(f"{'':28}{'no gradient':>12}{'forward':>12}{'and backward':>14}{'in this thread':>16}")
    for name, (function, tensors) in cases(arguments.tokens, arguments.device).items():
        found = microseconds(stages(function, tensors), arguments.device)
        print(f"{name:28}{found[0]:12.1f}{found[1]:12.1f}{found[2]:14.1f}{found[3]:16.1f}", flush=True)
    if arguments.device == "cuda":
        print_kernel_times()


if __name__ == "__main__":
    main()
