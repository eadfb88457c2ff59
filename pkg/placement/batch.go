package placement

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
)

// Batch is a run of keys in one buffer. The zero value is an empty batch.
type Batch struct {
	bytes []byte
	ends  []int
}

const (
	// batchKeys and batchBytes say when a batch is full: enough keys to make handing it over
	// cheap, few enough bytes to keep a dozen batches of long keys small.
	batchKeys  = 4096
	batchBytes = 256 << 10
)

// Add appends a key, which is copied.
func (b *Batch) Add(key []byte) {
	b.bytes = append(b.bytes, key...)
	b.ends = append(b.ends, len(b.bytes))
}

// AddFunc appends the key that build appends to the slice it is given.
func (b *Batch) AddFunc(build func(dst []byte) []byte) {
	b.bytes = build(b.bytes)
	b.ends = append(b.ends, len(b.bytes))
}

// Full tells whether the batch should be handed on.
func (b *Batch) Full() bool { return len(b.ends) >= batchKeys || len(b.bytes) >= batchBytes }

// Len is the number of keys.
func (b *Batch) Len() int { return len(b.ends) }

// Key returns the key with an index from 0 to Len()-1, valid until Reset.
func (b *Batch) Key(i int) []byte {
	start := 0
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.bytes[start:b.ends[i]:b.ends[i]]
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.bytes, b.ends = b.bytes[:0], b.ends[:0] }

// Source fills an empty batch with the next keys, until it is [Batch.Full] or no
// more are at hand. At the end it returns [io.EOF], with or without keys.
type Source func(*Batch) error

// Keys is a source of keys in memory.
func Keys(keys ...[]byte) Source {
	return func(b *Batch) error {
		for len(keys) > 0 && !b.Full() {
			b.Add(keys[0])
			keys = keys[1:]
		}
		if len(keys) == 0 {
			return io.EOF
		}
		return nil
	}
}

// Batches is a source of batches in memory, which are copied from.
func Batches(batches ...*Batch) Source {
	return func(b *Batch) error {
		if len(batches) == 0 {
			return io.EOF
		}
		b.bytes = append(b.bytes, batches[0].bytes...)
		b.ends = append(b.ends, batches[0].ends...)
		batches = batches[1:]
		return nil
	}
}

// ForEachBatch reads a source to its end, calls work for its batches on as many
// workers as asked for (0 or less: all cores), and emit for each batch and its
// result, one at a time in the order of the source. Memory stays bounded by a few batches
// for each worker. The first error of source, work or emit ends it; a context's end ends it
// at once, even if the source is blocked (its goroutine then ends with its next return).
// Each worker has a number from 0 to workers-1.
func ForEachBatch[T any](ctx context.Context, workers int, source Source, work func(worker int, b *Batch) (T, error), emit func(b *Batch, result T) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	type job struct {
		batch  *Batch
		result T
		err    error
		done   chan struct{}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pool sync.Pool
	todo, inOrder := make(chan *job, workers), make(chan *job, 2*workers)
	go func() {
		defer close(todo)
		defer close(inOrder)
		for {
			batch, _ := pool.Get().(*Batch)
			if batch == nil {
				batch = &Batch{}
			}
			batch.Reset()
			err := source(batch)
			j := &job{batch: batch, done: make(chan struct{})}
			if err != nil && !errors.Is(err, io.EOF) {
				j.err = err
				close(j.done)
			} else {
				select {
				case todo <- j:
				case <-ctx.Done():
					return
				}
			}
			select {
			case inOrder <- j:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			for j := range todo {
				if ctx.Err() == nil {
					j.result, j.err = work(worker, j.batch)
				}
				close(j.done)
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case j, more := <-inOrder:
			if !more {
				// The reader stops early where the context ends.
				err := context.Cause(ctx)
				cancel()
				running.Wait()
				return err
			}
			select {
			case <-ctx.Done():
			case <-j.done:
			}
			if ctx.Err() != nil {
				return context.Cause(ctx) // a worker may have passed over this batch
			}
			if j.err != nil {
				return j.err
			}
			if j.batch.Len() > 0 {
				if err := emit(j.batch, j.result); err != nil {
					return err
				}
			}
			pool.Put(j.batch)
		}
	}
}

// Owners answers many keys on all cores, with the same result as [Ranking].Owner
// one by one.
func Owners(r Ranking, keys [][]byte) []int {
	owners := make([]int, 0, len(keys))
	work := func(_ int, b *Batch) ([]int, error) {
		found := make([]int, b.Len())
		for i := range found {
			found[i] = r.Owner(b.Key(i))
		}
		return found, nil
	}
	emit := func(_ *Batch, found []int) error {
		owners = append(owners, found...)
		return nil
	}
	// Nothing here can fail: the source has its keys, and the context never ends.
	_ = ForEachBatch(context.Background(), 0, Keys(keys...), work, emit)
	return owners
}
