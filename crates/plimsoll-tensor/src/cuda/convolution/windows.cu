
// The windows of pooling, for images of up to three dimensions with `inner` adjacent channels.

struct Axis { i64 size, out, kernel, stride, padding, dilation, adaptive; };
struct Shape { i64 outer, inner; Axis axis[3]; };

// The first position of an adaptive window, and the one after its last.
INLINE int adaptive_first(const Axis& a, int o) { return (int)(o * a.size / a.out); }
INLINE int adaptive_end(const Axis& a, int o) { return (int)(((o + 1) * a.size + a.out - 1) / a.out); }
