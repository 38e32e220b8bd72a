/* What make.py needs and the oracle's stand-in device lacks: streams that lag behind, calls that are written down and may
 * fail, a clock that only pinning moves, and a capture that is only a flag. Preloaded before the stand-in. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
typedef void *stream_t, *event_t;
enum { EVENTS = 65536, NOT_READY = 600, NO_MEMORY = 2, FAILED = 999 };
static struct { event_t handle; stream_t stream; int done; } events[EVENTS]; /* by the order of their records */
static struct { char *at; size_t bytes; } pins[EVENTS];
static int recorded, pinned, fail_pin, fail_record;
static long long clock_ns = 1000000000000LL;
static stream_t capturing;
static int captures;
static char log_text[1 << 20];
static size_t log_end;
#define LOG(...) (log_end += (size_t)snprintf(log_text + log_end, sizeof log_text - log_end, __VA_ARGS__))

/* For make.py. */
char *take_log(void) { log_text[log_end] = 0; log_end = 0; return log_text; }
void set_failures(int pin, int record) { fail_pin = pin; fail_record = record; }
void finish(stream_t stream, int count) {
  for (int i = 0; i < recorded && count; i++)
    if (events[i].stream == stream && !events[i].done) { events[i].done = 1; count--; }
}

/* std::chrono::steady_clock::now: stands still except while memory is pinned or unpinned. Pinning may
 * take 0 us, which PyTorch's minimum forgets; unpinning may not, since its order is not always defined. */
long long _ZNSt6chrono3_V212steady_clock3nowEv(void) { return clock_ns; }
static int spend(int least_us) { static int n; int us = least_us + (n++ * 37) % 11; clock_ns += us * 1000LL; return us; }

int cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
  if (fail_pin && !--fail_pin) { LOG("pin %zu fails\n", bytes); return NO_MEMORY; }
  int (*next)(void **, size_t, unsigned) = dlsym(RTLD_NEXT, "cudaHostAlloc");
  int answer = next(at, bytes, flags);
  if (answer) return answer;
  pins[pinned].at = *at; pins[pinned].bytes = bytes;
  LOG("pin %zu %d %d\n", bytes, pinned++, spend(0));
  return 0;
}
int cudaFreeHost(void *at) {
  int (*next)(void *) = dlsym(RTLD_NEXT, "cudaFreeHost");
  for (int i = 0; i < pinned; i++)
    if (pins[i].at == at) { pins[i].at = 0; LOG("unpin %d %d\n", i, spend(1)); }
  return next(at);
}
/* "NTH+OFFSET" of an address within the memory pinned by the NTH call. */
const char *place(char *at) {
  static char text[64];
  for (int i = 0; i < pinned; i++)
    if (pins[i].at && pins[i].at <= at && at < pins[i].at + pins[i].bytes) {
      snprintf(text, sizeof text, "%d+%zu", i, (size_t)(at - pins[i].at));
      return text;
    }
  return "?";
}
int cudaPointerGetAttributes(struct { int type, device; void *device_at, *host_at; long reserved[8]; } *a, char *at) {
  memset(a, 0, sizeof *a);
  a->type = *place(at) != '?'; /* 1 is pinned */
  a->device_at = a->host_at = at;
  return 0;
}
int cudaEventRecordWithFlags(event_t event, stream_t stream, unsigned flags) {
  if (fail_record && !--fail_record) { LOG("record %p fails\n", stream); return FAILED; }
  events[recorded].handle = event; events[recorded].stream = stream;
  LOG("record %p %d\n", stream, recorded++);
  return 0;
}
int cudaEventRecord(event_t event, stream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
int cudaEventQuery(event_t event) {
  for (int i = recorded - 1; i >= 0; i--)
    if (events[i].handle == event) { LOG("query %d %d\n", i, events[i].done); return events[i].done ? 0 : NOT_READY; }
  return 0;
}
int cudaStreamBeginCapture(stream_t stream, int mode) { capturing = stream; captures++; return 0; }
int cudaStreamEndCapture(stream_t stream, void **graph) { capturing = 0; *graph = (void *)0x10; return 0; }
int cudaStreamIsCapturing(stream_t stream, int *status) { *status = capturing && stream == capturing; return 0; }
int cudaStreamGetCaptureInfo(stream_t stream, int *status, unsigned long long *id, void **g, void *d, void *e, size_t *n) {
  *status = capturing && stream == capturing;
  if (id) *id = captures;
  if (n) *n = 0;
  return 0;
}
int cudaGraphGetNodes(void *graph, void *nodes, size_t *n) { if (!nodes) *n = 1; return 0; }
int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { *exec = (void *)0x20; return 0; }
int cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { *exec = (void *)0x20; return 0; }
int cudaGraphDestroy(void *graph) { return 0; }
int cudaGraphExecDestroy(void *exec) { return 0; }
