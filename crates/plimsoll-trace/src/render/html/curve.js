// The levels over the recording, in as many points as a screen has.

/** The curve of one device: buckets with equal numbers of events, each with its highest moment. */
class Curve {
  constructor(data) {
    this.events = data.events;
    this.span = data.span || 0;
    this.begins = floats(data.begins);
    this.length = this.begins.length;
    for (const name of ["peak", "allocated", "reserved"]) this[name] = words(data[name]);
    this.pass = octets(data.pass);
    this.kinds = data.kinds.map((kind) => ({ ...kind, bytes: words(kind.bytes) }));
    this.most = this.reserved.reduce((most, grains, nth) => Math.max(most, grains, this.allocated[nth]), 1) * GRAIN;
  }

  /** The position on an axis where a bucket begins; for an index past the last bucket, the end of the axis. */
  at(bucket, byTime) {
    if (bucket >= this.length) return this.end(byTime);
    return byTime ? this.begins[bucket] : Math.floor((bucket * this.events) / this.length);
  }

  end(byTime) {
    return byTime ? this.span : this.events;
  }

  bucketAt(x, byTime) {
    return placeOf(this.length, (bucket) => this.at(bucket, byTime), x);
  }

  /** The bucket that contains a moment. */
  bucketOf(moment) {
    return this.bucketAt(Math.max(moment - 1, 0), false);
  }

  /** The bucket with the most allocated bytes in a range of buckets. */
  highest(from, to) {
    let best = from;
    for (let bucket = from + 1; bucket <= to; bucket++) if (this.allocated[bucket] > this.allocated[best]) best = bucket;
    return best;
  }

  /** The highest bucket of each pixel in a range. No peak is lost, however many buckets share a pixel. */
  columns(from, to, pixels, byTime) {
    const found = new Uint32Array(pixels);
    let bucket = this.bucketAt(from, byTime);
    for (let pixel = 0; pixel < pixels; pixel++) {
      const until = from + ((to - from) * (pixel + 1)) / pixels;
      const first = bucket;
      while (bucket + 1 < this.length && this.at(bucket + 1, byTime) < until) bucket++;
      found[pixel] = this.highest(first, bucket);
    }
    return found;
  }
}
